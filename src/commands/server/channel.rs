//! HTTP to a server: to a URL, or through a Unix socket. An answer is a message of the protocol, or a stream of them.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use isolator_pool::quote::escaped;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::{CHOSEN_TIMEOUT, RequestError, patiently};
use crate::calls::command::Piece;
use crate::commands::operators::trusting;
use crate::local_socket::{self, CONFIGURATION, HAS_NOT_RUN};

/// The longest message of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// How long a server can be silent. While it serves a call, it sends a comment in each `http.keepAlive`.
const SILENCE_TIMEOUT: Duration = Duration::from_mins(5);

/// Receives what comes before an answer.
pub(in crate::commands) type OnPiece = dyn Fn(Piece) + Send + Sync;

/// The way to a server.
#[derive(Debug)]
pub(super) enum Channel {
    /// A URL.
    Url { client: Client, url: Url, token: Option<HeaderValue> },
    /// A Unix socket. Its server must have this configuration, if there is one.
    Socket { path: PathBuf, configuration: Option<HeaderValue> },
}

/// An answer to a request.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    /// Whether it is certain that nothing has run.
    pub(super) has_not_run: bool,
    /// The message with the result or the error.
    pub(super) text: Vec<u8>,
}

/// A request, apart from where it goes.
pub(super) struct Request<'a> {
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    /// Receives what comes before the answer.
    pub(super) on_piece: Option<&'a OnPiece>,
}

impl Channel {
    /// The way to a URL.
    ///
    /// # Errors
    ///
    /// When the certificates or the token can't be used.
    pub(super) fn to_url(
        url: Url,
        token: Option<String>,
        authority: Option<&Path>,
    ) -> anyhow::Result<Self> {
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
        let client = client.build().context("no client for HTTP can be made")?;
        Ok(Self::Url { client, url, token })
    }

    /// Sends a request, and receives the answer. A server at a socket is asked before, for at most `limit`, whether it can serve the
    /// command. `server` is its name in messages.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub(super) async fn send(
        &self,
        request: Request<'_>,
        limit: Duration,
        server: &str,
    ) -> Result<HttpAnswer, RequestError> {
        let server = server.to_owned();
        let no_answer = |source| RequestError::NoAnswer { server: server.clone(), source };
        let unreachable = |source| RequestError::Unreachable { server: server.clone(), source };
        let Request { headers, body, on_piece } = request;
        match self {
            Self::Url { client, url, token } => {
                let mut request = client.post(url.clone()).headers(headers).body(body);
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, token);
                }
                let sent = not_silent(request.send()).await.map_err(no_answer)?;
                let sent = sent.map_err(reqwest::Error::without_url);
                let mut answer = sent.map_err(|error| match error.is_connect() {
                    true => unreachable(error.into()),
                    false => no_answer(error.into()),
                })?;
                let status = answer.status();
                let mut messages = Messages::new(answer.headers(), on_piece);
                while let Some(part) = not_silent(answer.chunk())
                    .await
                    .map_err(no_answer)?
                    .map_err(|error| no_answer(error.without_url().into()))?
                {
                    messages.add(&part).map_err(no_answer)?;
                }
                // Such a status is given before the request is looked into.
                let has_not_run = status.is_client_error();
                Ok(HttpAnswer { status, has_not_run, text: messages.text })
            }
            Self::Socket { path, configuration } => {
                let opened = patiently(&server, open(path, configuration.clone()));
                let opened = tokio::time::timeout(limit, opened).await;
                let opened =
                    opened.unwrap_or_else(|_| Err(anyhow!("it does not answer in {limit:?}")));
                let (mut sender, _connection, status) = opened.map_err(unreachable)?;
                match status {
                    StatusCode::NO_CONTENT => {}
                    StatusCode::PRECONDITION_FAILED => {
                        return Err(RequestError::OtherConfiguration(server));
                    }
                    status => return Err(unreachable(anyhow!("it answers {status}"))),
                }
                let request = to_socket(Method::POST, headers, configuration.clone(), body);
                let answer = not_silent(sender.send_request(request)).await.map_err(no_answer)?;
                let answer = answer.map_err(|error| no_answer(error.into()))?;
                let status = answer.status();
                let has_not_run = answer.headers().contains_key(HAS_NOT_RUN);
                let messages = Messages::new(answer.headers(), on_piece);
                let text = collect(answer.into_body(), messages).await.map_err(no_answer)?;
                Ok(HttpAnswer { status, has_not_run, text })
            }
        }
    }
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
    let messages = Messages::new(answer.headers(), None);
    collect(answer.into_body(), messages).await?;
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

async fn collect(mut body: Incoming, mut messages: Messages<'_>) -> anyhow::Result<Vec<u8>> {
    while let Some(frame) =
        not_silent(poll_fn(|context| Pin::new(&mut body).poll_frame(context))).await?
    {
        if let Ok(part) = frame?.into_data() {
            messages.add(&part)?;
        }
    }
    Ok(messages.text)
}

/// Fails if a server is silent for too long.
async fn not_silent<T>(received: impl Future<Output = T>) -> anyhow::Result<T> {
    let received = tokio::time::timeout(SILENCE_TIMEOUT, received).await;
    received.map_err(|_| anyhow!("it has sent nothing in {SILENCE_TIMEOUT:?}"))
}

/// The messages of an answer: its whole body, or the events of a stream.
struct Messages<'a> {
    is_stream: bool,
    /// The body; of a stream, the last message with a result.
    text: Vec<u8>,
    /// The line of a stream that is not complete.
    line: Vec<u8>,
    on_piece: Option<&'a OnPiece>,
}

/// The parts of a message before the answer that are used.
#[derive(Deserialize)]
struct Progress {
    params: ProgressParams,
}

#[derive(Deserialize)]
struct ProgressParams {
    message: Option<String>,
}

impl<'a> Messages<'a> {
    fn new(headers: &HeaderMap, on_piece: Option<&'a OnPiece>) -> Self {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        Self { is_stream, text: Vec::new(), line: Vec::new(), on_piece }
    }

    fn add(&mut self, part: &[u8]) -> anyhow::Result<()> {
        if !self.is_stream {
            return extend(&mut self.text, part);
        }
        let mut lines = part.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for end in lines {
            extend(&mut self.line, end)?;
            self.end_line();
        }
        extend(&mut self.line, last)
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if let Ok(Progress { params }) = serde_json::from_slice(data) {
            let pieces = params.message.map(|text| serde_json::from_str::<Vec<Piece>>(&text));
            if let (Some(on_piece), Some(Ok(pieces))) = (self.on_piece, pieces) {
                pieces.into_iter().for_each(on_piece);
            }
        } else if data.iter().any(|byte| !byte.is_ascii_whitespace()) {
            self.text = data.to_vec();
        }
    }
}

fn extend(text: &mut Vec<u8>, part: &[u8]) -> anyhow::Result<()> {
    if text.len() + part.len() > MAX_ANSWER {
        bail!("the answer has more than {} MiB", MAX_ANSWER >> 20);
    }
    text.extend_from_slice(part);
    Ok(())
}

/// A message with a result or an error.
#[derive(Deserialize)]
struct Message {
    result: Option<Value>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    message: String,
}

impl HttpAnswer {
    /// The result in it.
    ///
    /// # Errors
    ///
    /// The error in it, or the beginning of what it is instead, in one line.
    pub(super) fn result(&self) -> Result<Value, String> {
        match serde_json::from_slice(&self.text) {
            Ok(Message { result: Some(result), .. }) => Ok(result),
            Ok(Message { error: Some(ErrorObject { message }), .. }) => {
                Err(escaped(&message).into_owned())
            }
            _ => {
                let text = String::from_utf8_lossy(&self.text);
                let beginning: String = text.trim().chars().take(500).collect();
                Err(format!("{}: {}", self.status, escaped(&beginning)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::calls::command::Bytes;

    #[test]
    fn a_stream_is_read_in_any_parts() {
        let pieces = serde_json::to_string(&[Piece::Stdout(Bytes(b"\xff\n".to_vec()))]).unwrap();
        let progress = serde_json::json!({
            "method": "notifications/progress", "params": { "progressToken": 1, "progress": 1, "message": pieces },
        });
        let stream = format!(
            ":\n\ndata: \n\ndata: {progress}\n\ndata: {{\"id\":1,\"result\":{{\"a\":1}}}}\n\n"
        );
        let headers = HeaderMap::from_iter([(
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        )]);
        for size in [1, 7, stream.len()] {
            let received = Arc::new(Mutex::new(Vec::new()));
            let pieces = Arc::clone(&received);
            let on_piece = move |piece| pieces.lock().unwrap().push(piece);
            let mut messages = Messages::new(&headers, Some(&on_piece));
            for part in stream.as_bytes().chunks(size) {
                messages.add(part).unwrap();
            }
            let text = std::mem::take(&mut messages.text);
            let answer = HttpAnswer { status: StatusCode::OK, has_not_run: false, text };
            assert_eq!(answer.result().unwrap(), serde_json::json!({ "a": 1 }));
            drop(messages);
            assert_eq!(*received.lock().unwrap(), [Piece::Stdout(Bytes(b"\xff\n".to_vec()))]);
        }
    }

    #[test]
    fn answers_are_bounded_and_errors_are_one_line() {
        let mut messages = Messages::new(&HeaderMap::new(), None);
        let part = vec![b'x'; MAX_ANSWER / 2];
        assert!(messages.add(&part).is_ok() && messages.add(&part).is_ok());
        let error = messages.add(b"x").unwrap_err().to_string();
        assert!(error.contains("more than 64 MiB"), "{error}");
        let error = |text: &[u8]| {
            let text = text.to_vec();
            HttpAnswer { status: StatusCode::BAD_GATEWAY, has_not_run: false, text }.result()
        };
        assert_eq!(error(b"a\nisolator: b"), Err("502 Bad Gateway: a\\nisolator: b".to_owned()));
        assert_eq!(error(br#"{"error":{"message":"a\nb"}}"#), Err("a\\nb".to_owned()));
    }
}
