//! A request to a sandbox, from its head to its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::connect::MAX_MESSAGE;
use super::connect::answer;
use super::connect::envelope::{self, PREFIX};
use super::connect::head::{Head, Shape};
use crate::apis::Apis;
use crate::apis::access::Caller;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::registry::Sandbox;
use crate::apis::keyed::{Keyed, key_of};
use crate::apis::operation::Operation;
use crate::audit::Note;
use crate::calls::idempotency::Claim;
use crate::calls::{CallError, Serving};
use crate::sessions::InUse;

/// The user that all programs and files of a sandbox belong to.
const USER: &str = "user";

/// The operation of a method of a service.
pub(super) const fn called(route: &'static str, name: &'static str) -> Operation {
    Operation { method: "POST", route, name }
}

/// The paths of a service, with its methods and the function that serves each.
pub(super) fn route<Method: Copy + Send + Sync + 'static, Served>(
    apis: &Apis,
    e2b: &E2b,
    methods: &'static [(Method, Operation)],
    serve: impl Fn(Method, &'static Operation, E2b, Request) -> Served + Copy + Send + Sync + 'static,
) -> Router
where
    Served: Future<Output = Response> + Send + 'static,
{
    methods.iter().fold(Router::new(), |router, (method, operation)| {
        let served = post(move |State(e2b), request| serve(*method, operation, e2b, request));
        router.route(operation.route, operation.observed(apis, served.with_state(e2b.clone())))
    })
}

/// A request to a sandbox that was let in.
pub(super) struct DataCall {
    pub now: Serving,
    pub sandbox: Arc<Sandbox>,
    pub parts: Parts,
    pub caller: Caller,
    /// Its line in the audit log, if its method has one.
    pub note: Note,
}

impl DataCall {
    /// Lets a request in.
    ///
    /// # Errors
    ///
    /// When it may not use the sandbox, or names another user than that of the sandbox.
    pub(super) fn enter(e2b: &E2b, parts: Parts) -> Result<Self, E2bError> {
        let (sandbox, caller) = e2b.let_in(&parts)?;
        check_user(user_of(&parts.headers)?.as_deref())?;
        Ok(Self { now: e2b.now(), sandbox, parts, caller, note: Note::default() })
    }

    /// Begins the line of a request in the audit log.
    ///
    /// # Errors
    ///
    /// When the log can't be written, and the operator wants nothing to be served then.
    pub(super) fn begin(&self, operation: &Operation) -> Result<Note, E2bError> {
        operation.begin(&self.now, &self.caller.client).map_err(E2bError::of_call)
    }

    /// The line of a method.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`].
    fn begin_line(&self, line: Line) -> Result<Note, E2bError> {
        match (line, self.now.setup.audit.refusal()) {
            (Line::Of(operation), _) => self.begin(operation),
            (Line::None, Some(why)) => Err(E2bError::of_call(CallError::NoAudit(why))),
            (Line::None, None) => Ok(Note::default()),
        }
    }

    /// The session of the sandbox, for the line and the request.
    ///
    /// # Errors
    ///
    /// When it has ended or is paused.
    pub(super) fn session(&mut self) -> Result<InUse, E2bError> {
        let session = self.sandbox.session()?;
        self.note.place(&session.language.name, Some(&session.id));
        Ok(session)
    }

    /// Receives the only message of the request.
    ///
    /// # Errors
    ///
    /// When it does not arrive, or is not one of this type.
    pub(super) async fn message<T: DeserializeOwned>(
        &mut self,
        head: &Head,
        body: Body,
    ) -> Result<T, E2bError> {
        let body = self.receive(head, body).await?;
        self.parse(head, &body)
    }

    /// The same for a message that may have an idempotency key, which is claimed.
    ///
    /// # Errors
    ///
    /// Also when the key was used before.
    pub(super) async fn message_once<T: DeserializeOwned>(
        &mut self,
        operation: &'static Operation,
        head: &Head,
        body: Body,
    ) -> Result<(T, Option<Claim>), E2bError> {
        let key = key_of(&self.parts.headers).map_err(E2bError::of_argument)?;
        let body = self.receive(head, body).await?;
        let message = self.parse(head, &body)?;
        let Some(key) = key else { return Ok((message, None)) };
        let keyed = Keyed::new(key, operation, &[&self.sandbox.id], &body);
        let claim = keyed.claim(&self.now, &self.caller.client, &mut self.note);
        let claim = claim.map_err(E2bError::of_key)?;
        Ok((message, Some(claim)))
    }

    async fn receive(&mut self, head: &Head, body: Body) -> Result<Bytes, E2bError> {
        let most = match head.shape {
            Shape::Unary => MAX_MESSAGE,
            // An empty envelope may end the stream.
            Shape::Stream => MAX_MESSAGE + 2 * PREFIX + 1024,
        };
        self.caller.receive(&self.parts, body, most).await.map_err(E2bError::refused)
    }

    fn parse<T: DeserializeOwned>(&mut self, head: &Head, body: &[u8]) -> Result<T, E2bError> {
        let share = &mut self.caller.share;
        Ok(match head.shape {
            Shape::Unary => envelope::parse(body, head.encoding, share)?,
            Shape::Stream => envelope::only(body, head.encoding, share)?,
        })
    }
}

/// The line of a method in the audit log.
pub(super) enum Line {
    /// It changes something, or returns what programs do from now on.
    Of(&'static Operation),
    /// It has none, and is refused like all others if lines can't be written.
    None,
}

/// Serves a method of a service in its protocol. The time of a unary call is limited as its client asks.
pub(super) async fn serve<Serve>(
    e2b: &E2b,
    request: Request,
    shape: Shape,
    line: Line,
    serve: Serve,
) -> Response
where
    Serve:
        for<'a> FnOnce(&'a mut DataCall, Head, Body) -> BoxFuture<'a, Result<Response, E2bError>>,
{
    let (parts, body) = request.into_parts();
    let head = match Head::read(&parts.headers, shape) {
        Ok(head) => head,
        // The client may speak another protocol, so the status says it, too.
        Err(error) => return answer::error(Shape::Unary, &error.into()),
    };
    let mut call = match DataCall::enter(e2b, parts) {
        Ok(call) => call,
        Err(error) => return answer::error(shape, &error),
    };
    match call.begin_line(line) {
        Ok(note) => call.note = note,
        Err(error) => return call.caller.answer(answer::error(shape, &error)),
    }
    let serving = serve(&mut call, head, body);
    let served = match (shape, head.timeout) {
        (Shape::Unary, Some(timeout)) => {
            let timed = tokio::time::timeout(timeout, serving).await;
            timed.unwrap_or_else(|_| Err(timed_out("the request was not served")))
        }
        _ => serving.await,
    };
    let status = served.as_ref().map_or_else(|error| error.kind().connect_code(), |_| "success");
    call.note.answered(status);
    let response = served.unwrap_or_else(|error| {
        if error.kind() == ErrorKind::Internal {
            tracing::warn!(%error, path = call.parts.uri.path(), "a request to a sandbox failed");
        }
        answer::error(shape, &error)
    });
    call.caller.answer(response)
}

/// Says with the result of a request whether it has run, to its claim of an idempotency key.
pub(super) fn end_claim<T>(claim: Option<Claim>, result: &Result<T, E2bError>) {
    let Some(claim) = claim else { return };
    match result {
        Err(error) if error.outcome().is_not_run() => claim.not_run(),
        Err(_) => drop(claim),
        Ok(_) => claim.ran(),
    }
}

/// The error when the client's own time has passed.
pub(super) fn timed_out(what: &str) -> E2bError {
    let message = format!("{what} within the time of Connect-Timeout-Ms");
    E2bError::new(ErrorKind::TimedOut, message)
}

/// How often a stream is written to after its client has closed its sending side: only that shows whether it is gone.
const PROBE: Duration = Duration::from_secs(1);

/// Says when a stream without other messages has to send one.
pub(super) struct KeepAlive {
    every: Duration,
    /// Ready when the client is most likely gone.
    departure: Option<BoxFuture<'static, ()>>,
}

impl KeepAlive {
    pub(super) fn new(call: &DataCall, head: &Head) -> Self {
        Self { every: head.keepalive, departure: Some(Box::pin(call.caller.departure())) }
    }

    /// Waits until a message is due. Dropping the future starts the wait again.
    pub(super) async fn due(&mut self) {
        let Some(departure) = &mut self.departure else { return tokio::time::sleep(PROBE).await };
        tokio::select! {
            () = departure.as_mut() => self.departure = None,
            () = tokio::time::sleep(self.every) => {}
        }
    }
}

/// Waits until a time, or forever.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The user that a request names in the form of basic authentication, whose password means nothing.
fn user_of(headers: &HeaderMap) -> Result<Option<String>, E2bError> {
    let Some(value) = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let Some((scheme, encoded)) = value.split_once(' ') else { return Ok(None) };
    // Tokens of other schemes are no concern of a sandbox.
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = BASE64.decode(encoded.trim()).ok().and_then(|it| String::from_utf8(it).ok());
    let decoded = decoded.ok_or_else(|| {
        E2bError::invalid("Authorization", "is not the name of a user and a colon in base64")
    })?;
    Ok(Some(decoded.split(':').next().unwrap_or_default().to_owned()))
}

/// Checks the user that a request names.
///
/// # Errors
///
/// When it is not the one that a sandbox has.
pub(super) fn check_user(user: Option<&str>) -> Result<(), E2bError> {
    match user {
        None | Some("" | USER) => Ok(()),
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            Err(E2bError::invalid(
                "user",
                format!(
                    "there is no user {other:?} that can be used: all programs and files of a sandbox belong \
                     to {USER:?}, so leave the user out"
                ),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_of_the_sandbox_can_be_named() {
        let named = |value: &str| {
            let headers = [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect();
            user_of(&headers).and_then(|user| check_user(user.as_deref()))
        };
        for fine in [
            "Basic dXNlcjo=",
            "basic dXNlcjo=",
            "Basic Og==",
            "Bearer e2b_0",
            "Basic dXNlcjpzZWNyZXQ=",
        ] {
            assert!(named(fine).is_ok(), "{fine}");
        }
        // root, a name that only begins like the user, no base64, and no UTF-8.
        for wrong in ["Basic cm9vdDo=", "Basic dXNlcjE6", "Basic user:", "Basic /w=="] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
        assert!(check_user(None).is_ok() && check_user(Some("root\n")).is_err());
    }
}
