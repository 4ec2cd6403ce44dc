//! Checks every HTTP request before rmcp sees it: its client, whether the session is the client's, and a body that is
//! neither too large nor too slow. Passes the answer on, and notices clients that do not read it to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use hyper::body::{Body as _, Frame, SizeHint};
use isolator_pool::pool::admission::Client;
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Ending;
use super::accept;
use super::alive::{self, Alive, Pace};
use super::sessions::{SessionAccess, Sessions, Use};
use crate::calls::budget::Budget;
use crate::calls::{Again, CallOutcome, QueueDeadline};
use crate::current::Current;
use crate::mcp::caller::ConnectedClient;
use crate::node::LostHandle;
use crate::transport::message::{self, Limits, MAX_MESSAGE, Shortened};
use crate::web::{
    OutcomeSlot, Peer, Refused, Rules, Side, Weighed, asks_for_status, client_of, discard, receive,
    set_outcome, set_status,
};

/// How long a call goes on after its client disconnected, if the client could come back to its session for the
/// answer.
const RECONNECT_GRACE: Duration = Duration::from_secs(10);

/// The first revision whose clients can read an event without data.
const READS_EMPTY_EVENTS: &str = "2025-11-25";

/// The code of errors about protocol sessions that are not there, as other servers send it.
const NO_SESSION: i32 = -32_001;

/// The header that names the session.
const SESSION: &str = "mcp-session-id";

/// The headers that name something which only one server has: a session of the protocol, a session, and a long run.
const BOUND: [&str; 3] = [SESSION, "mcp-param-session", "mcp-param-handle"];

/// Checks requests.
#[derive(Debug)]
pub(super) struct Guard {
    /// Among others, the clients that can call.
    rules: Current<Rules>,
    sessions: Arc<Sessions>,
    /// Bodies that are being received and served.
    bodies: Budget,
    limits: Limits,
    /// Waits for clients that disconnected and may come back.
    absences: TaskTracker,
    /// Answers that are still being sent.
    answers: TaskTracker,
    /// Cancelled when all requests are refused.
    closed: CancellationToken,
    /// How long an answer can be silent.
    keep_alive: Duration,
    /// The client of all requests, if the listener has only one.
    only_client: Option<Client>,
}

impl Guard {
    pub(super) fn new(
        rules: Current<Rules>,
        sessions: Arc<Sessions>,
        bodies: Budget,
        limits: Limits,
        ending: &Ending,
        keep_alive: Duration,
    ) -> Self {
        Self {
            rules,
            sessions,
            bodies,
            limits,
            absences: TaskTracker::new(),
            answers: ending.answers.clone(),
            closed: ending.closed.clone(),
            keep_alive,
            only_client: None,
        }
    }

    /// Takes all requests as this client's, because the listener lets no other in.
    pub(super) fn with_only_client(self, client: Client) -> Self {
        Self { only_client: Some(client), ..self }
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The client of a request. Without tokens, clients are distinguished by their addresses.
    fn client(&self, request: &Request) -> Result<Client, Answered> {
        if let Some(client) = &self.only_client {
            return Ok(client.clone());
        }
        let rules = self.rules.get();
        let Some(tokens) = &rules.tokens else {
            return Ok(Peer::client(request.extensions().get()));
        };
        Ok(client_of(tokens, request.headers())?)
    }
}

/// The answer to a request that goes no further.
type Answered = Box<Response>;

impl From<Refused> for Answered {
    fn from(refused: Refused) -> Self {
        Self::new(refused.into_response())
    }
}

/// Lets a request through, or answers it.
pub(super) async fn guard(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let is_bound = is_bound(request.headers());
    let asks_for_status = asks_for_status(request.headers());
    let answer = guard.let_through(request, next).await;
    answer.unwrap_or_else(|mut refused| {
        if refused.extensions().get::<CallOutcome>().is_none() {
            let outcome = of_refused(refused.status());
            set_outcome(&mut refused, if is_bound { outcome.here() } else { outcome });
            if is_bound && asks_for_status && refused.status() == StatusCode::SERVICE_UNAVAILABLE {
                // Load balancers send what is answered with 503 to another server.
                *refused.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            }
        }
        *refused
    })
}

/// Whether a request names something that only this server has.
fn is_bound(headers: &HeaderMap) -> bool {
    BOUND.iter().any(|name| headers.contains_key(*name))
}

/// The outcome of a request that was refused with this status.
fn of_refused(status: StatusCode) -> CallOutcome {
    let is_busy = status == StatusCode::SERVICE_UNAVAILABLE;
    CallOutcome::NotRun(if is_busy { Again::Later(1) } else { Again::Never })
}

impl Guard {
    async fn let_through(
        self: Arc<Self>,
        request: Request,
        next: Next,
    ) -> Result<Response, Answered> {
        let client = self.client(&request)?;
        let session = request.headers().get(SESSION).and_then(|id| id.to_str().ok());
        let session = session.map(str::to_owned);
        let access = session.as_ref().map(|id| self.sessions.enter(id, &client));
        let used = match access {
            Some(SessionAccess::Foreign) => {
                return Err((StatusCode::NOT_FOUND, "there is no such session\n")
                    .into_response()
                    .into());
            }
            Some(SessionAccess::Lost(lost)) => {
                let (_, mut body) = request.into_parts();
                discard(&mut body).await;
                return Err(lost_session(&lost).into());
            }
            Some(SessionAccess::Own(used)) => Some(used),
            Some(SessionAccess::Unknown) | None => None,
        };

        let (mut parts, mut body) = request.into_parts();
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = content_type.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        let is_json = essence.trim().eq_ignore_ascii_case("application/json");
        let mut share = self.bodies.share(&client);
        let mut body = match receive(&parts.headers, &mut body, MAX_MESSAGE, &mut share).await {
            Ok(received) => received,
            Err(refused) => {
                discard(&mut body).await;
                return Err(refused.into());
            }
        };
        match self.limits.check(&body) {
            Ok(None) => {}
            Ok(Some(Shortened { text, arguments })) => {
                body = text.into();
                parts.extensions.insert(arguments);
                // It would no longer be the body's.
                parts.headers.remove(CONTENT_LENGTH);
            }
            Err(error) => {
                // It repeats the identifier, which can be as long as the message.
                let said = message::refusal(&body, &error);
                share.replace(said.len());
                let weighed = |body| Body::new(Weighed::new(body, share, None));
                return Err(refused(said).map(weighed).into());
            }
        }
        let is_post = parts.method == Method::POST;
        let opened =
            (is_post && session.is_none()).then(|| message::opened_revision(&body)).flatten();
        if opened.is_some() && !self.sessions.make_room(&client).await {
            let message =
                "there are too many sessions, and all are in use; end those that you don't need";
            return Err(unavailable(&body, message).into());
        }
        // The answer to a GET is a stream that has no end.
        let answer = is_post.then(|| self.answers.token());
        if self.closed.is_cancelled() {
            return Err(unavailable(&body, &Refused::ShuttingDown.to_string()).into());
        }
        let gone = CancellationToken::new();
        let outcome = OutcomeSlot::default();
        let is_bound = is_bound(&parts.headers);
        let said = |it: CallOutcome| if is_bound { it.here() } else { it };
        parts.extensions.insert(outcome.clone());
        parts.extensions.insert(ConnectedClient { client: client.clone(), gone: gone.clone() });
        let asks_for_status = is_post && asks_for_status(&parts.headers);
        if asks_for_status {
            // A refusal has to come before the answer begins.
            parts.extensions.insert(QueueDeadline::of_answer_within(self.keep_alive));
        }
        accept::complete(&parts.method, &mut parts.headers);
        let is_delete = parts.method == Method::DELETE;
        let side = parts.extensions.get::<Side>().cloned().unwrap_or_default();
        let mut pace = Pace::new(self.keep_alive, side.closed());
        let is_primed = match (&opened, &used) {
            (Some(revision), _) => revision.as_str() >= READS_EMPTY_EVENTS,
            (None, used) => used.as_ref().is_none_or(|used| used.is_primed),
        };
        let sent = body.clone();
        let mut served: BoxFuture<'static, Response> =
            Box::pin(next.run(Request::from_parts(parts, Body::from(body))));
        // The head of the answer to a message that opens a session names the session.
        let early = match is_post && opened.is_none() {
            true => alive::early(&mut served, &mut pace).await,
            false => Some(served.as_mut().await),
        };
        let response = match early {
            None => Alive::late(served, pace, message::find_id(&sent), !is_primed),
            Some(mut response) => {
                if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && is_json {
                    // rmcp would blame the content type.
                    response = refusal(&sent, &message::explain(&sent));
                }
                if is_delete && response.status() == StatusCode::ACCEPTED {
                    // The session is closed by now. Some clients take "accepted", rmcp's answer, for a failure.
                    response = StatusCode::NO_CONTENT.into_response();
                }
                let id = response.headers().get(SESSION).and_then(|id| id.to_str().ok());
                if let (Some(id), None) = (id, &used) {
                    self.sessions.add(id, &client, is_primed);
                }
                let refused = response.status().is_client_error();
                let refused = refused.then(|| of_refused(response.status()));
                if let Some(outcome) = outcome.get().or(refused).map(said) {
                    set_outcome(&mut response, outcome);
                }
                // The request has been served, and the answer is in memory until its client has read it.
                let size = response.body().size_hint().exact().unwrap_or_default();
                share.replace(usize::try_from(size).unwrap_or(usize::MAX));
                match alive::is_events(&response) {
                    true => Alive::events(response, pace, !is_primed),
                    false => response,
                }
            }
        };
        // Without a session rmcp notices by itself.
        let absence = session.map(|session| Absence { guard: self, session, gone });
        let weighed = |body| Weighed::new(body, share, answer);
        let watched = |body| Watched { body: weighed(body), absence, used };
        let mut response = response.map(|body| Body::new(watched(body)));
        if asks_for_status && alive::is_events(&response) {
            response = alive::begun(response).await;
        }
        if let Some(outcome) = outcome.get().filter(|_| asks_for_status).map(said) {
            set_outcome(&mut response, outcome);
            set_status(&mut response, outcome);
        }
        Ok(response)
    }
}

/// The answer to a message that is refused.
fn refusal(text: &[u8], error: &ErrorData) -> Response {
    refused(message::refusal(text, error))
}

fn refused(body: Vec<u8>) -> Response {
    (StatusCode::BAD_REQUEST, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// The answer to a request of a protocol session that this node does not have. Clients take 404 as a reason to open another one. The
/// node that had the session may have run the call.
fn lost_session(lost: &LostHandle) -> Response {
    let reason = lost.to_string();
    let message = format!("the protocol session is gone: {reason}; open another one");
    let data = json!({ "status": "session_gone", "reason": reason, "node": lost.node() });
    let error = ErrorData::new(ErrorCode(NO_SESSION), message, Some(data));
    let body = message::refusal(b"", &error);
    let mut response =
        (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "application/json")], body).into_response();
    set_outcome(&mut response, CallOutcome::Unknown);
    response
}

/// The answer to a message that can't be served at this moment. It has the message's id, so that it also is an answer to the message
/// where a load balancer, after its last try, gives it the status of one.
fn unavailable(text: &[u8], message: &str) -> Response {
    let mut response = refusal(text, &ErrorData::internal_error(message.to_owned(), None));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(RETRY_AFTER, 1.into());
    response
}

/// The answer to a request.
struct Watched {
    body: Weighed,
    /// The action if the client does not read it to its end.
    absence: Option<Absence>,
    used: Option<Use>,
}

struct Absence {
    guard: Arc<Guard>,
    session: String,
    gone: CancellationToken,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        if polled.is_none() {
            self.absence = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let is_over = self.is_end_stream();
        let Some(Absence { guard, session, gone }) = self.absence.take().filter(|_| !is_over)
        else {
            return;
        };
        let tracker = guard.absences.clone();
        let then = Instant::now();
        // The call goes on, so its session stays in use.
        let used = self.used.take();
        tracker.spawn(async move {
            tokio::time::sleep(RECONNECT_GRACE).await;
            if !guard.sessions.is_used_since(&session, then) {
                gone.cancel();
            }
            drop(used);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_that_is_not_served_now_has_an_answer_with_its_identifier() {
        let message = br#"{"jsonrpc": "2.0", "id": 7, "method": "initialize"}"#;
        let response = unavailable(message, "all are in use");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["id"], 7);
        assert_eq!(answer["error"]["message"], "all are in use");
    }
}
