//! A running server that a command uses: the one that `--server` names, or one of this user with the same configuration.
//!
//! A request is a message of MCP's newest revision, which needs no session, sent by HTTP: to a URL, or through a Unix socket.

use std::future::poll_fn;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::commands::complain;
use crate::commands::operators::{is_place_alone, read_token, trusting};
use crate::config::Config;
use crate::local_socket::{self, CONFIGURATION, HAS_NOT_RUN};
use crate::transport::message::MAX_MESSAGE;

/// The revision of the protocol.
const REVISION: &str = "2026-07-28";

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// How long a server that the user did not name can take until it says that it can serve the command.
const FOUND_TIMEOUT: Duration = Duration::from_millis(300);

/// The same for a server that the user named, and for connecting to a URL.
const CHOSEN_TIMEOUT: Duration = Duration::from_secs(10);

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
            Self::NoAnswer { .. } => false,
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
}

#[derive(Debug)]
enum Channel {
    Url { client: Client, url: Url, token: Option<HeaderValue> },
    Socket { path: PathBuf, configuration: Option<HeaderValue> },
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
        Self { channel: Channel::Socket { path, configuration }, name, is_chosen }
    }

    fn behind(url: Url, token: Option<String>, authority: Option<&Path>) -> anyhow::Result<Self> {
        // Fails if it was installed before, which is fine: this program has only one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A token must reach this server and no other.
        let client =
            Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(CHOSEN_TIMEOUT);
        let client = match url.scheme() {
            // It needs no certificates, and a machine may have none.
            "http" => client.tls_certs_only([]),
            _ => trusting(client, authority)?,
        };
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let token = token.transpose().context("the token has characters that no token has")?;
        let name = format!("the server at {url}");
        let client = client.build().context("no client for HTTP can be made")?;
        Ok(Self { channel: Channel::Url { client, url, token }, name, is_chosen: true })
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Calls a tool, and returns its result. `meta` is added to the `_meta` of the request. Dropping the future cancels the call.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub(super) async fn call_tool(
        &self,
        tool: &str,
        arguments: &impl serde::Serialize,
        meta: Value,
    ) -> Result<Value, RequestError> {
        let parameters = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        self.request("tools/call", tool, parameters).await
    }

    /// Sends a request. `name` is the tool that it is about.
    async fn request(
        &self,
        method: &str,
        name: &str,
        mut parameters: Value,
    ) -> Result<Value, RequestError> {
        let meta = &mut parameters["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!(REVISION);
        meta["io.modelcontextprotocol/clientInfo"] =
            json!({ "name": "isolator", "version": env!("CARGO_PKG_VERSION") });
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        let headers = [
            (ACCEPT.as_str(), "application/json, text/event-stream"),
            (CONTENT_TYPE.as_str(), "application/json"),
            ("mcp-protocol-version", REVISION),
            ("mcp-method", method),
            ("mcp-name", name),
        ];
        let headers = headers.into_iter().filter_map(|(name, value)| {
            Some((name.parse::<http::HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
        });
        let body = body.to_string();
        if body.len() > MAX_MESSAGE {
            let source = anyhow!("the request has more than {} MiB", MAX_MESSAGE >> 20);
            return Err(RequestError::Unreachable { server: self.name.clone(), source });
        }
        let Answer { status, has_not_run, text } = self.send(body, headers.collect()).await?;
        let refused =
            |message| RequestError::Refused { server: self.name.clone(), message, has_not_run };
        match message_in(&text) {
            Some(Message { result: Some(result), .. }) => Ok(result),
            Some(Message { error: Some(error), .. }) => Err(refused(error.message)),
            _ => Err(refused(format!(
                "{status}: {}",
                String::from_utf8_lossy(&text).trim().chars().take(500).collect::<String>()
            ))),
        }
    }

    async fn send(&self, body: String, headers: HeaderMap) -> Result<Answer, RequestError> {
        let unreachable = |source| RequestError::Unreachable { server: self.name.clone(), source };
        let no_answer = |source| RequestError::NoAnswer { server: self.name.clone(), source };
        match &self.channel {
            Channel::Url { client, url, token } => {
                let mut request = client.post(url.clone()).headers(headers).body(body);
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, token);
                }
                let sent = request.send().await.map_err(reqwest::Error::without_url);
                let mut answer = sent.map_err(|error| match error.is_connect() {
                    true => unreachable(error.into()),
                    false => no_answer(error.into()),
                })?;
                let (status, mut text) = (answer.status(), Vec::new());
                while let Some(part) =
                    answer.chunk().await.map_err(|error| no_answer(error.without_url().into()))?
                {
                    extend(&mut text, &part).map_err(no_answer)?;
                }
                // Such a status is given before the request is looked into.
                Ok(Answer { status, has_not_run: status.is_client_error(), text })
            }
            Channel::Socket { path, configuration } => {
                let limit = if self.is_chosen { CHOSEN_TIMEOUT } else { FOUND_TIMEOUT };
                let opened = tokio::time::timeout(limit, open(path, configuration.clone())).await;
                let opened =
                    opened.unwrap_or_else(|_| Err(anyhow!("it does not answer in {limit:?}")));
                let (mut sender, _connection, status) = opened.map_err(unreachable)?;
                match status {
                    StatusCode::NO_CONTENT => {}
                    StatusCode::PRECONDITION_FAILED => {
                        return Err(RequestError::OtherConfiguration(self.name.clone()));
                    }
                    status => return Err(unreachable(anyhow!("it answers {status}"))),
                }
                let request = to_socket(Method::POST, headers, configuration.clone(), body);
                let answer =
                    sender.send_request(request).await.map_err(|it| no_answer(it.into()))?;
                let status = answer.status();
                let has_not_run = answer.headers().contains_key(HAS_NOT_RUN);
                let text = collect(answer.into_body()).await.map_err(no_answer)?;
                Ok(Answer { status, has_not_run, text })
            }
        }
    }
}

/// An answer to a request.
struct Answer {
    status: StatusCode,
    /// Whether it is certain that nothing has run.
    has_not_run: bool,
    text: Vec<u8>,
}

/// Connects to a socket, and asks its server with `OPTIONS` whether it can serve a command with this configuration: an answer that
/// comes at once, and before which nothing runs.
async fn open(
    path: &Path,
    configuration: Option<HeaderValue>,
) -> anyhow::Result<(SendRequest<reqwest::Body>, AbortOnDropHandle<hyper::Result<()>>, StatusCode)>
{
    let stream = local_socket::connect(path).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = AbortOnDropHandle::new(TaskTracker::new().spawn(connection));
    let asked = to_socket(Method::OPTIONS, HeaderMap::new(), configuration, String::new());
    let answer = sender.send_request(asked).await?;
    let status = answer.status();
    collect(answer.into_body()).await?;
    if status == StatusCode::NO_CONTENT {
        sender.ready().await?;
    }
    Ok((sender, connection, status))
}

fn to_socket(
    method: Method,
    headers: HeaderMap,
    configuration: Option<HeaderValue>,
    body: String,
) -> http::Request<reqwest::Body> {
    let mut request = http::Request::new(reqwest::Body::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = http::Uri::from_static("/mcp");
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    if let Some(configuration) = configuration {
        headers.insert(CONFIGURATION, configuration);
    }
    request
}

async fn collect(mut body: Incoming) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(part) = frame?.into_data() {
            extend(&mut text, &part)?;
        }
    }
    Ok(text)
}

fn extend(text: &mut Vec<u8>, part: &[u8]) -> anyhow::Result<()> {
    text.extend_from_slice(part);
    if text.len() > MAX_ANSWER {
        bail!("the answer has more than {} MiB", MAX_ANSWER >> 20);
    }
    Ok(())
}

/// The parts of a message that are used.
#[derive(Deserialize)]
struct Message {
    result: Option<Value>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    message: String,
}

/// The answer in a body: the whole body, or the last event of a stream.
fn message_in(text: &[u8]) -> Option<Message> {
    serde_json::from_slice(text).ok().or_else(|| {
        let lines = text.split(|byte| *byte == b'\n');
        let events = lines.filter_map(|line| line.strip_prefix(b"data:"));
        let mut messages = events.filter_map(|data| serde_json::from_slice::<Message>(data).ok());
        messages.rfind(|message| message.result.is_some() || message.error.is_some())
    })
}
