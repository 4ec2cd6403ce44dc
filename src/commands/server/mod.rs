//! A running server that a command uses: the one that `--server` names, or one of this user with the same configuration.
//!
//! A request is a message of MCP's newest revision, which needs no session, sent by HTTP: to a URL, or through a Unix socket.

mod channel;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use isolator_pool::pool::session::FilePart;
use reqwest::Url;
use serde_json::{Value, json};

pub(super) use self::channel::OnPiece;
use self::channel::{Channel, Request};
use crate::calls::command::{COMMAND, CommandAnswer, CommandCall, CommandError};
use crate::commands::complain;
use crate::commands::operators::{is_place_alone, read_token};
use crate::config::Config;
use crate::local_socket;
use crate::node::HANDLE_ARGUMENTS;
use crate::transport::message::MAX_MESSAGE;

/// The revision of the protocol.
const REVISION: &str = "2026-07-28";

/// How long a server that the user did not name can take until it says that it can serve the command.
const FOUND_TIMEOUT: Duration = Duration::from_millis(300);

/// The same for a server that the user named, and for connecting to a URL.
const CHOSEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long that can take until it is said what is waited for.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// Longest wait for packages in a server that the user did not name.
const MAX_PACKAGES_WAIT_MS: u64 = 500;

/// For errors after which nothing is known about the program.
pub(super) const MAY_HAVE_RUN: &str = "the program may have run there";

/// The server that a command uses.
#[derive(Debug, Clone, Args)]
pub struct ServerOptions {
    /// Server to use: the URL of its MCP endpoint, such as https://server.example/mcp, or the path of its Unix socket; none
    /// for no server [default: a server of this user with the same configuration, if one is running]
    #[arg(long, value_name = "URL|SOCKET|none")]
    pub server: Option<ServerAddress>,
    /// File with the token for the server at a URL, if it wants one
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token_file: Option<PathBuf>,
    /// File with the certificates, in PEM, that must have signed that of the server at a URL [default: those that this machine
    /// trusts]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub ca_file: Option<PathBuf>,
}

/// A server, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// None: the command makes the sandbox itself.
    None,
    /// The URL of its MCP endpoint.
    Url(Url),
    /// The path of its Unix socket.
    Socket(PathBuf),
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        if !text.contains("://") {
            let is_like_url = text.contains(':') && !text.starts_with(['/', '.']);
            return match is_like_url && !Path::new(text).exists() {
                true => Err(format!("there is no such socket; for a URL, write http://{text}")),
                false => Ok(Self::Socket(text.into())),
            };
        }
        let url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        url.filter(is_place_alone).map(Self::Url).ok_or_else(|| {
            "expected a URL such as https://server.example/mcp, without a user, a query or a fragment, the path of a socket, \
             or none"
                .to_owned()
        })
    }
}

/// Whether a URL leads to this machine.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The request did not reach the server, so nothing has run.
    #[error("{server} can't be reached: {source:#}")]
    Unreachable {
        /// The server.
        server: String,
        /// The cause.
        source: anyhow::Error,
    },
    /// The server has another configuration, so nothing has run.
    #[error("{0} has another configuration")]
    OtherConfiguration(String),
    /// The server answers with an error of HTTP or of the protocol.
    #[error("{server} refuses the request: {message}{}", if *.has_not_run { String::new() } else { format!("; {MAY_HAVE_RUN}") })]
    Refused {
        /// The server.
        server: String,
        /// Its message.
        message: String,
        /// Whether it says as data that nothing has run.
        has_not_run: bool,
    },
    /// The answer is not one of this version.
    #[error(
        "{server} sent an unknown result, maybe because it has another version: {source}; {MAY_HAVE_RUN}"
    )]
    Unknown {
        /// The server.
        server: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The answer did not arrive, so it is unknown what has run.
    #[error("no answer came from {server}: {source:#}; {MAY_HAVE_RUN}")]
    NoAnswer {
        /// The server.
        server: String,
        /// The cause.
        source: anyhow::Error,
    },
}

impl RequestError {
    /// Whether it is certain that nothing has run.
    pub(super) const fn is_before_run(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::OtherConfiguration(_) => true,
            Self::Refused { has_not_run, .. } => *has_not_run,
            Self::NoAnswer { .. } | Self::Unknown { .. } => false,
        }
    }
}

/// A server to send requests to.
#[derive(Debug)]
pub(super) struct Server {
    channel: Channel,
    /// Its name in messages.
    name: String,
    /// Whether the user named it. Otherwise the command can do without it.
    pub(super) is_chosen: bool,
    /// Whether it has answered before.
    is_known: AtomicBool,
}

impl Server {
    /// The servers to try, in this order; none if the command is to make the sandbox itself.
    ///
    /// # Errors
    ///
    /// When the token can't be read.
    pub(super) fn candidates(
        options: &ServerOptions,
        config: &Config,
    ) -> anyhow::Result<Vec<Self>> {
        let Some(address) = &options.server else {
            let configuration = HeaderValue::from_str(&local_socket::fingerprint(config)).ok();
            let found = local_socket::sockets().into_iter();
            return Ok(found.map(|path| Self::at(path, configuration.clone(), false)).collect());
        };
        let url = match address {
            ServerAddress::Url(url) => url,
            _ if options.token_file.is_some() => {
                bail!("--token-file is only for a server at a URL")
            }
            _ if options.ca_file.is_some() => bail!("--ca-file is only for a server at a URL"),
            ServerAddress::None => return Ok(Vec::new()),
            ServerAddress::Socket(path) => return Ok(vec![Self::at(path.clone(), None, true)]),
        };
        let authority = options.ca_file.as_deref();
        if url.scheme() == "http" && authority.is_some() {
            bail!("--ca-file is for a server with TLS: write https:// in --server");
        }
        let token = options.token_file.as_deref().map(read_token).transpose()?;
        if url.scheme() == "http" && !is_this_machine(url) {
            if token.is_some() {
                bail!(
                    "--token-file: the token would be sent unencrypted to another machine: write https:// in --server"
                );
            }
            complain(
                "isolator: warning: the program and its result are sent unencrypted to another machine",
            );
        }
        Ok(vec![Self::behind(url.clone(), token, authority)?])
    }

    fn at(path: PathBuf, configuration: Option<HeaderValue>, is_chosen: bool) -> Self {
        let name = format!("the server at {}", path.display());
        Self::new(Channel::Socket { path, configuration }, name, is_chosen)
    }

    fn behind(url: Url, token: Option<String>, authority: Option<&Path>) -> anyhow::Result<Self> {
        let name = format!("the server at {url}");
        Ok(Self::new(Channel::to_url(url, token, authority)?, name, true))
    }

    const fn new(channel: Channel, name: String, is_chosen: bool) -> Self {
        Self { channel, name, is_chosen, is_known: AtomicBool::new(false) }
    }

    /// How long it waits for packages that are being built, in milliseconds. Without a server, the command shows how far they are,
    /// so one that the user did not name waits only for a moment.
    pub(super) fn max_packages_wait_ms(&self) -> Option<u64> {
        (!self.is_chosen).then_some(MAX_PACKAGES_WAIT_MS)
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Has a call of a command served. Dropping the future cancels it. `on_piece` receives what comes before the answer.
    ///
    /// # Errors
    ///
    /// See [`RequestError`]. The inner error is the server's.
    pub(super) async fn call(
        &self,
        command: &CommandCall,
        on_piece: Option<&OnPiece>,
    ) -> Result<Result<CommandAnswer, CommandError>, RequestError> {
        self.check().await?;
        let name = command.name();
        let (arguments, options) = command.to_parts();
        let mut meta = json!({ COMMAND: options, "isolator/detach": false });
        if on_piece.is_some() {
            meta["progressToken"] = json!(1);
        }
        let parameters = json!({ "name": name, "arguments": arguments, "_meta": meta });
        let mut result = self.request("tools/call", name, parameters, on_piece).await?;
        let result = result.get_mut("_meta").and_then(|meta| meta.get_mut(COMMAND));
        let result = result.map(Value::take).unwrap_or_default();
        serde_json::from_value(result)
            .map_err(|source| RequestError::Unknown { server: self.name.clone(), source })
    }

    /// Reads a resource. Returns its text or bytes, and the size of the whole.
    ///
    /// # Errors
    ///
    /// When there is no such resource, or it can't be read.
    pub(super) async fn read(&self, uri: &str) -> anyhow::Result<FilePart> {
        let parameters = json!({ "uri": uri, "_meta": {} });
        let result = match self.request("resources/read", uri, parameters, None).await {
            Err(RequestError::Refused { message, .. }) => return Err(anyhow!(message)),
            result => result?,
        };
        let contents = &result["contents"][0];
        let content = match (contents["text"].as_str(), contents["blob"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(blob)) => BASE64.decode(blob).context("the server sent no base64")?,
            (None, None) => bail!("{} sent nothing of {uri}", self.name),
        };
        let size = contents["_meta"]["isolator/totalBytes"].as_u64();
        Ok(FilePart { size: size.unwrap_or(content.len() as u64), content })
    }

    /// Makes sure that a server at a URL answers, before anything is run there. Servers at sockets are asked for each request.
    async fn check(&self) -> Result<(), RequestError> {
        let is_url = matches!(self.channel, Channel::Url { .. });
        if !is_url || self.is_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let asked = self.request("server/discover", "", json!({ "_meta": {} }), None);
        let asked = tokio::time::timeout(CHOSEN_TIMEOUT, patiently(&self.name, asked)).await;
        let unreachable = |source| RequestError::Unreachable { server: self.name.clone(), source };
        match asked {
            Err(_) => Err(unreachable(anyhow!("it does not answer in {CHOSEN_TIMEOUT:?}"))),
            Ok(Ok(_)) => {
                self.is_known.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(Err(RequestError::Refused { server, message, .. })) => {
                Err(RequestError::Refused { server, message, has_not_run: true })
            }
            Ok(Err(RequestError::NoAnswer { source, .. })) => Err(unreachable(source)),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Sends a request. `name` is the tool or resource that it is about.
    async fn request(
        &self,
        method: &str,
        name: &str,
        mut parameters: Value,
        on_piece: Option<&OnPiece>,
    ) -> Result<Value, RequestError> {
        let meta = &mut parameters["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!(REVISION);
        meta["io.modelcontextprotocol/clientInfo"] =
            json!({ "name": "isolator", "version": env!("CARGO_PKG_VERSION") });
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        // Handles are arguments of calls.
        let handles = HANDLE_ARGUMENTS.into_iter().filter_map(|(argument, header)| {
            let handle = parameters["arguments"][argument].as_str()?;
            Some((format!("mcp-param-{header}").parse().ok()?, handle.parse().ok()?))
        });
        let headers = [
            (ACCEPT.as_str(), "application/json, text/event-stream"),
            (CONTENT_TYPE.as_str(), "application/json"),
            ("mcp-protocol-version", REVISION),
            ("mcp-method", method),
            ("mcp-name", name),
        ];
        let headers = headers.into_iter().filter(|(_, value)| !value.is_empty());
        let headers = headers.filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
        });
        let headers = headers.chain(handles).collect();
        let body = body.to_string();
        if body.len() > MAX_MESSAGE {
            let source = anyhow!("the request has more than {} MiB", MAX_MESSAGE >> 20);
            return Err(RequestError::Unreachable { server: self.name.clone(), source });
        }
        let limit = if self.is_chosen { CHOSEN_TIMEOUT } else { FOUND_TIMEOUT };
        let request = Request { headers, body, on_piece };
        let answer = self.channel.send(request, limit, &self.name).await?;
        let has_not_run = answer.has_not_run;
        answer.result().map_err(|message| RequestError::Refused {
            server: self.name.clone(),
            message,
            has_not_run,
        })
    }
}

/// Waits for a server, and says so after a moment.
async fn patiently<T>(server: &str, answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        () = tokio::time::sleep(SILENT_FOR) => {
            complain(&format!("isolator: waiting for {server}; Ctrl-C ends this"));
            answer.await
        }
    }
}
