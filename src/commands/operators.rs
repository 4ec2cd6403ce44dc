//! Asking a server at the address where it listens for operators.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use isolator_pool::quote::escaped;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::address::ListenAddress;
use crate::commands::cli::OperatorArguments;

/// How long a server has to tell its state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 16 << 20;

/// A server that operators can ask.
#[derive(Debug)]
pub(super) struct AskedServer {
    addresses: Vec<SocketAddr>,
    token: Option<String>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The status, such as 200.
    pub status: u16,
    /// What it says.
    pub body: String,
}

impl AskedServer {
    /// The server that the command line or else the configuration names.
    ///
    /// # Errors
    ///
    /// When neither does, or the token can't be read.
    pub(super) fn new(
        arguments: &OperatorArguments,
        configured: impl FnOnce() -> anyhow::Result<Option<ListenAddress>>,
        command: &str,
    ) -> anyhow::Result<Self> {
        let address = match arguments.address {
            Some(address) => Some(address),
            None => configured()?,
        };
        let Some(address) = address else {
            bail!(
                "no address is known: give that of `serve --admin`, such as `isolator {command} 9464`, or set admin.address"
            );
        };
        let token = match &arguments.token_file {
            None => None,
            Some(file) => {
                let read = std::fs::read_to_string(file);
                let text = read.with_context(|| file.display().to_string())?;
                let token = text.trim();
                if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    bail!("{}: a token alone must be in it", file.display());
                }
                Some(token.to_owned())
            }
        };
        Ok(Self { addresses: address.candidates(), token })
    }

    /// The state of the server.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask), and when the answer is no state.
    pub(super) async fn status(&self) -> anyhow::Result<Value> {
        let answer = self.ask("GET /status.json", TIMEOUT).await?;
        if answer.status != 200 {
            return Err(answer.unexpected());
        }
        serde_json::from_str(&answer.body).context("the answer is not a state")
    }

    /// Asks, for instance `GET /status.json`. Dropping the future ends that.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or refuses the token.
    pub(super) async fn ask(&self, what: &str, timeout: Duration) -> anyhow::Result<Answer> {
        let addresses = &self.addresses;
        let shown = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let asked = tokio::time::timeout(timeout, self.ask_in_time(what)).await;
        let asked = asked.map_err(|_| anyhow::anyhow!("it did not answer within {timeout:?}"));
        asked.and_then(|answer| answer).with_context(|| {
            format!("no answer from the server whose listener for operators should be at {shown}")
        })
    }

    /// HTTP/1.0 ends an answer with the connection, so nothing more than this is needed.
    async fn ask_in_time(&self, what: &str) -> anyhow::Result<Answer> {
        let mut stream = TcpStream::connect(&*self.addresses).await?;
        let token = self.token.as_deref();
        let authorization =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "{what} HTTP/1.0\r\nhost: localhost\r\ncontent-length: 0\r\n{authorization}\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        let answer = String::from_utf8(answer).context("the answer is not UTF-8")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        match status {
            Some(401) => bail!("{}; give it with --token-file", escaped(body.trim())),
            Some(status) => Ok(Answer { status, body: body.to_owned() }),
            None => bail!("the answer is not HTTP"),
        }
    }
}

impl Answer {
    /// An error that tells of this answer.
    pub(super) fn unexpected(&self) -> anyhow::Error {
        let line = self.body.lines().next().unwrap_or_default();
        anyhow::anyhow!("the server answered with status {}: {}", self.status, escaped(line))
    }
}
