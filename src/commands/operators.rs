//! Asking a server at the address where it listens for operators.

use clap::Args;
use std::borrow::Borrow;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::Method;
use http::header::HOST;
use isolator_pool::quote::escaped;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Url};
use serde_json::Value;

use crate::address::{AddressError, ListenAddress};
use crate::config::Config;

/// How a server is asked as an operator.
#[derive(Debug, Args)]
pub struct OperatorArguments {
    /// Where the server listens for operators; a URL such as https://server.example:9464 if it uses TLS [default: admin.address of
    /// the configuration]
    #[arg(value_name = "[ADDRESS:]PORT|URL")]
    pub address: Option<OperatorAddress>,
    /// File with the token of an operator, if the server wants one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the certificates, in PEM, that must have signed that of the server [default: those that this machine trusts]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// How long a server has to tell its state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// The name of this machine, under which a listener without tokens answers.
const LOCALHOST: &str = "localhost";

/// Where a server listens for operators, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorAddress {
    /// Without TLS, at an address of `serve --admin`.
    Plain(ListenAddress),
    /// With TLS. The certificate must be for the name in the URL.
    Tls(Url),
}

/// Why a text is no such address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OperatorAddressError {
    /// Neither an address nor a URL.
    #[error("{0}, or the URL of a listener with TLS, such as https://server.example:9464")]
    Address(#[from] AddressError),
    /// A URL, but not of a server alone.
    #[error(
        "expected a URL of a server such as https://server.example:9464, without a user, a query or a fragment"
    )]
    Url,
}

impl FromStr for OperatorAddress {
    type Err = OperatorAddressError;

    fn from_str(text: &str) -> Result<Self, OperatorAddressError> {
        const SCHEME: &str = "https://";
        let is_url = text.get(..SCHEME.len()).is_some_and(|it| it.eq_ignore_ascii_case(SCHEME));
        if !is_url {
            return Ok(Self::Plain(text.parse()?));
        }
        let mut url = Url::parse(text).map_err(|_| OperatorAddressError::Url)?;
        if !is_place_alone(&url) {
            return Err(OperatorAddressError::Url);
        }
        // A proxy may serve it below a path.
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(Self::Tls(url))
    }
}

/// Whether a URL has a host, and no user, query or fragment.
pub(super) fn is_place_alone(url: &Url) -> bool {
    let has_user = !url.username().is_empty() || url.password().is_some();
    url.has_host() && !has_user && url.query().is_none() && url.fragment().is_none()
}

/// A server that operators can ask.
#[derive(Debug)]
pub(super) struct AskedServer {
    client: Client,
    /// Ends with a slash.
    base: Url,
    /// Whether it is asked by the name of this machine, whatever its address is.
    is_local: bool,
    /// The addresses for messages.
    shown: String,
    token: Option<String>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct OperatorAnswer {
    /// The status, such as 200.
    pub status: u16,
    /// Its text.
    pub body: String,
}

impl AskedServer {
    /// The server that the command line or else the configuration names, if one of them does.
    ///
    /// # Errors
    ///
    /// When the configuration's can only be asked by its name, or a file can't be used.
    pub(super) fn find<C: Borrow<Config>>(
        arguments: &OperatorArguments,
        configured: impl FnOnce() -> anyhow::Result<C>,
        command: &str,
    ) -> anyhow::Result<Option<Self>> {
        let address = match &arguments.address {
            Some(address) => address.clone(),
            None => {
                let config = configured()?;
                let config = config.borrow();
                let Some(address) = config.admin.address else { return Ok(None) };
                let is_loopback = |address: &SocketAddr| address.ip().is_loopback();
                if config.http.tls.is_some() && !address.candidates().iter().all(is_loopback) {
                    bail!(
                        "the listener at admin.address uses the certificate of http.tls: give a name that is in it, such as \
                         `isolator {command} https://server.example:9464`"
                    );
                }
                OperatorAddress::Plain(address)
            }
        };
        let token = arguments.token_file.as_deref().map(read_token).transpose()?;
        Self::new(address, arguments.ca_file.as_deref(), token).map(Some)
    }

    /// As [`find`](Self::find).
    ///
    /// # Errors
    ///
    /// When neither names one, too.
    pub(super) fn named<C: Borrow<Config>>(
        arguments: &OperatorArguments,
        configured: impl FnOnce() -> anyhow::Result<C>,
        command: &str,
    ) -> anyhow::Result<Self> {
        Self::find(arguments, configured, command)?.with_context(|| {
            format!(
                "no address is known: give that of `serve --admin`, such as `isolator {command} 9464`, or set admin.address"
            )
        })
    }

    fn new(
        address: OperatorAddress,
        authority: Option<&Path>,
        token: Option<String>,
    ) -> anyhow::Result<Self> {
        // Fails if it was installed before, which is fine: this program has only one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A token must reach this server alone.
        let client = Client::builder().no_proxy().redirect(Policy::none());
        let (client, base, shown, is_local) = match address {
            OperatorAddress::Plain(address) => {
                if authority.is_some() {
                    bail!(
                        "--ca-file is for a listener with TLS: give its URL, such as https://server.example:9464"
                    );
                }
                let addresses = address.candidates();
                let shown = addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
                let port = addresses.first().map_or(0, SocketAddr::port);
                let base = Url::parse(&format!("http://{LOCALHOST}:{port}/"))?;
                // It needs no certificates, and a machine may have none.
                let client = client.tls_certs_only([]).resolve_to_addrs(LOCALHOST, &addresses);
                (client, base, shown.join(" or "), true)
            }
            OperatorAddress::Tls(url) => {
                let shown = url.to_string();
                (trusting(client, authority)?, url, shown, false)
            }
        };
        let client = client.build().context("no client for HTTP can be made")?;
        Ok(Self { client, base, is_local, shown, token })
    }

    /// The state of the server.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask), and when the answer is no state.
    pub(super) async fn status(&self) -> anyhow::Result<Value> {
        let answer = self.ask(Method::GET, "status.json", TIMEOUT).await?;
        if answer.status != 200 {
            return Err(answer.unexpected());
        }
        serde_json::from_str(&answer.body).context("the answer is not a state")
    }

    /// Asks for a path, for instance `status.json`. Dropping the future ends that.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or refuses the token.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        timeout: Duration,
    ) -> anyhow::Result<OperatorAnswer> {
        let asked = tokio::time::timeout(timeout, self.ask_in_time(method, path)).await;
        let asked = asked.map_err(|_| anyhow::anyhow!("it did not answer within {timeout:?}"));
        asked.and_then(|answer| answer).with_context(|| {
            let shown = &self.shown;
            format!("no answer from the server whose listener for operators should be at {shown}")
        })
    }

    async fn ask_in_time(&self, method: Method, path: &str) -> anyhow::Result<OperatorAnswer> {
        let mut request = self.client.request(method, self.base.join(path)?).body("");
        if self.is_local {
            request = request.header(HOST, LOCALHOST);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let mut answer = request.send().await.map_err(reqwest::Error::without_url)?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
            body.extend_from_slice(&part);
            if body.len() > MAX_ANSWER {
                bail!("the answer has more than {} MiB", MAX_ANSWER >> 20);
            }
        }
        let body = String::from_utf8(body).context("the answer is not UTF-8")?;
        match status {
            401 => bail!("{}; give it with --token-file", escaped(body.trim())),
            status => Ok(OperatorAnswer { status, body }),
        }
    }
}

pub(super) fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let token = text.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("{}: a token alone must be in it", file.display());
    }
    Ok(token.to_owned())
}

/// Trusts what the certificates in a file have signed, and nothing else; without a file, what this machine trusts.
pub(super) fn trusting(
    client: ClientBuilder,
    authority: Option<&Path>,
) -> anyhow::Result<ClientBuilder> {
    let Some(file) = authority else { return Ok(client) };
    let unusable = || format!("{}: certificates in PEM must be in it", file.display());
    let pem = fs::read(file).with_context(|| file.display().to_string())?;
    let certificates = Certificate::from_pem_bundle(&pem).with_context(unusable)?;
    if certificates.is_empty() {
        bail!(unusable());
    }
    Ok(client.tls_certs_only(certificates))
}

impl OperatorAnswer {
    /// An error that tells of this answer.
    pub(super) fn unexpected(&self) -> anyhow::Error {
        let line = self.body.lines().next().unwrap_or_default();
        anyhow::anyhow!("the server answered with status {}: {}", self.status, escaped(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_url_with_tls() {
        let parse = str::parse::<OperatorAddress>;
        assert_eq!(parse("9464"), Ok(OperatorAddress::Plain(ListenAddress::Loopback(9464))));
        for (text, expected) in [
            ("https://server.example:9464", "https://server.example:9464/"),
            ("HTTPS://server.example", "https://server.example/"),
            ("https://ops.example/isolator", "https://ops.example/isolator/"),
            ("https://[::1]:9464/", "https://[::1]:9464/"),
        ] {
            assert_eq!(
                parse(text),
                Ok(OperatorAddress::Tls(Url::parse(expected).unwrap())),
                "{text}"
            );
        }
        for text in
            ["https://", "https://a@b:1", "https://b:1?x", "https://b:1#x", "https://b:99999"]
        {
            assert_eq!(parse(text), Err(OperatorAddressError::Url), "{text}");
        }
        for (text, hint) in [
            ("http://127.0.0.1:9464", "without http://"),
            ("server.example:9464", "https://server.example:9464"),
            ("", "https://server.example:9464"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(hint), "{text:?}: {message}");
        }
    }
}
