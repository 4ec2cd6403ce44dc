//! Errors as E2B's clients read them: JSON with a code and a message on the control plane and for files, and the codes
//! of Connect for processes and the file system.

use std::borrow::Cow;
use std::error::Error;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use isolator_pool::pool::counts::Failure;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::pool::session::agent::AgentError;
use serde_json::{Value, json};

use crate::calls::idempotency::KeyRefusal;
use crate::calls::{Again, CallError, CallOutcome};
use crate::node::{LostHandle, Thing};
use crate::request::arguments::InvalidArgument;
use crate::sessions::OpenFailure;
use crate::web::{Refused, set_outcome};

/// Tells clients whether to send the same request again. Without it they repeat what a server answers with 429, 502, 503 or 504.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Why a sandbox that is paused can't be used.
pub(super) const PAUSED: &str = "it is paused: connect to resume it";

/// A request that was not served.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct E2bError {
    kind: ErrorKind,
    message: Cow<'static, str>,
    /// The node that has the sandbox, or had it.
    node: Option<String>,
    outcome: CallOutcome,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// A kind of error, which has a status of HTTP and a code of Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A field, path or parameter can't be used.
    Invalid,
    /// The request has no key, or one that is not accepted.
    Unauthenticated,
    /// The request is not allowed.
    Denied,
    /// The thing that is named is not there: a sandbox on the control plane, a file, a process.
    NotFound,
    /// It is there already.
    Exists,
    /// It is in a state that does not allow this.
    Conflict,
    /// Its idempotency key was used for another request.
    OtherRequest,
    /// The body is too large.
    TooLarge,
    /// A limit of the client is reached.
    Exhausted,
    /// The server does not have this.
    NotOffered,
    /// The sandbox has ended or is paused, on the data plane.
    SandboxGone,
    /// The server is busy or stopping, for all clients.
    Busy,
    /// There is no space left in the sandbox.
    NoSpace,
    /// The time of the client has passed.
    TimedOut,
    /// The server or the sandbox failed.
    Internal,
}

impl ErrorKind {
    /// The status of HTTP.
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Exists | Self::Conflict => StatusCode::CONFLICT,
            Self::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::NotOffered => StatusCode::NOT_IMPLEMENTED,
            Self::SandboxGone => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The code of Connect.
    pub(crate) const fn connect_code(self) -> &'static str {
        match self {
            Self::Invalid | Self::OtherRequest | Self::TooLarge => "invalid_argument",
            Self::Unauthenticated => "unauthenticated",
            Self::Denied => "permission_denied",
            Self::NotFound => "not_found",
            Self::Exists => "already_exists",
            Self::Conflict => "failed_precondition",
            Self::Exhausted | Self::NoSpace => "resource_exhausted",
            Self::NotOffered => "unimplemented",
            Self::SandboxGone | Self::Busy => "unavailable",
            Self::TimedOut => "deadline_exceeded",
            Self::Internal => "internal",
        }
    }

    /// The outcome of a request that failed with it, if nothing else says more.
    const fn outcome(self) -> CallOutcome {
        match self {
            Self::Busy => CallOutcome::NotRun(Again::Later(1)),
            Self::Exhausted => CallOutcome::NotRun(Again::AfterOwn(1)),
            Self::Internal | Self::TimedOut => CallOutcome::Unknown,
            _ => CallOutcome::NotRun(Again::Never),
        }
    }

    /// Whether the same request can succeed a moment later.
    const fn is_retried(self) -> bool {
        matches!(self, Self::Busy | Self::Exhausted)
    }
}

impl From<InvalidArgument> for E2bError {
    fn from(error: InvalidArgument) -> Self {
        Self::invalid(&error.field, &error.message).caused_by(error)
    }
}

impl E2bError {
    /// An error of this kind with a message for the client.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), outcome: kind.outcome(), node: None, source: None }
    }

    /// The error for a sandbox of a node that is lost, or that is another one. It may be known by a secret, which is not repeated. That
    /// node may have served the request before it was lost.
    pub(crate) fn lost(kind: ErrorKind, lost: LostHandle) -> Self {
        let lost = lost.of(Thing::Sandbox);
        let message = format!("the sandbox was not found: {lost}");
        let error = Self::new(kind, message).with_outcome(CallOutcome::Unknown);
        Self { node: Some(lost.node().to_owned()), ..error }
    }

    /// A field, path or parameter that can't be used.
    pub(crate) fn invalid(field: &str, message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Invalid, format!("{field}: {message}"))
    }

    /// Something that this server does not have, with the reason.
    pub(crate) fn not_offered(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotOffered, message)
    }

    /// The same error of a request with this outcome.
    pub(crate) fn with_outcome(self, outcome: CallOutcome) -> Self {
        Self { outcome, ..self }
    }

    /// The same error of a request of which a part has run.
    pub(crate) fn after_a_part(self) -> Self {
        let outcome = self.outcome.after_a_part();
        self.with_outcome(outcome)
    }

    /// The same error with this outcome. Whether the client alone is the reason determines the status, because load balancers ask
    /// another server if it is not.
    fn with_reason(self, outcome: CallOutcome) -> Self {
        let is_of_room = matches!(self.kind, ErrorKind::Busy | ErrorKind::Exhausted);
        let kind = match outcome {
            CallOutcome::NotRun(Again::AfterOwn(_)) if is_of_room => ErrorKind::Exhausted,
            CallOutcome::NotRun(Again::Later(_)) if is_of_room => ErrorKind::Busy,
            _ => self.kind,
        };
        Self { kind, outcome, ..self }
    }

    /// Whether the request has run.
    pub(crate) const fn outcome(&self) -> CallOutcome {
        self.outcome
    }

    /// The same error with its cause.
    pub(crate) fn caused_by(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Its kind.
    pub(crate) const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Its message for the client.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error of a request without a valid token.
    pub(crate) fn unauthenticated(refused: Refused) -> Self {
        let message = format!(
            "{refused}: send a token of this server in X-API-KEY; its operator makes one with `isolator token --e2b NAME`"
        );
        Self::new(ErrorKind::Unauthenticated, message).caused_by(refused)
    }

    /// The kernel has no random bytes for a secret.
    pub(super) fn no_random(error: getrandom::Error) -> Self {
        let message = format!("the kernel returned no random bytes: {error}");
        Self::new(ErrorKind::Internal, message).caused_by(error)
    }

    /// The error of a request whose head or body is refused.
    pub(crate) fn refused(refused: Refused) -> Self {
        let kind = match refused.status() {
            StatusCode::UNAUTHORIZED => ErrorKind::Unauthenticated,
            StatusCode::FORBIDDEN => ErrorKind::Denied,
            StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
            StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Busy,
            StatusCode::REQUEST_TIMEOUT => ErrorKind::TimedOut,
            _ => ErrorKind::Invalid,
        };
        let outcome = refused.outcome();
        Self::new(kind, refused.to_string()).with_outcome(outcome).caused_by(refused)
    }

    /// The error of a call that has no result.
    pub(crate) fn of_call(error: CallError) -> Self {
        let error = match error {
            CallError::Lost(lost) => return Self::lost(ErrorKind::SandboxGone, *lost),
            error => error,
        };
        let kind = match &error {
            CallError::Invalid(_) => ErrorKind::Invalid,
            CallError::Packages(refusal) if refusal.is_of_arguments() => ErrorKind::Invalid,
            CallError::Forbidden { .. } => ErrorKind::Denied,
            // Another server, which a load balancer would ask, would only begin to build them.
            CallError::PackagesComing { .. } => ErrorKind::Exhausted,
            CallError::SessionGone(_) | CallError::SessionEnded(_) | CallError::Lost(_) => {
                ErrorKind::SandboxGone
            }
            CallError::NotOpened(OpenFailure::AllInUse { .. } | OpenFailure::Full { .. })
            | CallError::TooMuchAtOnce { .. }
            | CallError::CheckBusy(_)
            | CallError::NoAudit(_)
            | CallError::Journal(_) => ErrorKind::Busy,
            CallError::Sandbox(error) | CallError::NotOpened(OpenFailure::Open(error)) => {
                kind_of_execution(error)
            }
            CallError::Session(error) => kind_of_session(error),
            CallError::Agent(error) => kind_of_agent(error),
            CallError::Packages(_) | CallError::NoVerdict(_) | CallError::NotOpened(_) => {
                ErrorKind::Internal
            }
        };
        let outcome = error.outcome();
        let message = match &error {
            CallError::SessionGone(gone) | CallError::SessionEnded(gone) => {
                not_found(None, &gone.why.to_string())
            }
            error => error.to_string(),
        };
        Self::new(kind, message).with_reason(outcome).caused_by(error)
    }

    /// The error of an argument that can't be used.
    pub(crate) fn of_argument(error: InvalidArgument) -> Self {
        Self::invalid(&error.field, error.message)
    }

    /// The error of a request whose idempotency key does not lead to an answer.
    pub(crate) fn of_key(refusal: KeyRefusal) -> Self {
        let kind = match refusal {
            KeyRefusal::OtherRequest => ErrorKind::OtherRequest,
            KeyRefusal::TooManyRunning(_) => ErrorKind::Exhausted,
            KeyRefusal::NotKept
            | KeyRefusal::Ended
            | KeyRefusal::Streaming
            | KeyRefusal::TooManyWaiting(_) => ErrorKind::Conflict,
        };
        let outcome = refusal.outcome();
        Self::new(kind, refusal.to_string()).with_outcome(outcome).caused_by(refusal)
    }

    /// The error of a session that has no answer.
    pub(crate) fn of_session(error: SessionError) -> Self {
        let message = match &error {
            SessionError::Ended(reason) => not_found(None, &reason.to_string()),
            SessionError::Paused => not_found(None, PAUSED),
            error => error.to_string(),
        };
        let outcome = CallOutcome::of_session(&error);
        Self::new(kind_of_session(&error), message).with_reason(outcome).caused_by(error)
    }

    /// The error of a session's agent.
    pub(crate) fn of_agent(error: AgentError) -> Self {
        match error {
            AgentError::Session(error) => Self::of_session(error),
            error => {
                let outcome = CallOutcome::of_agent(&error);
                let message = error.to_string();
                Self::new(kind_of_agent(&error), message).with_reason(outcome).caused_by(error)
            }
        }
    }

    /// The body of an error on the control plane, for files and for code.
    pub(crate) fn body(&self) -> Value {
        self.with_code(json!(self.kind.status().as_u16()))
    }

    /// The body of an error of Connect.
    pub(crate) fn connect_body(&self) -> Value {
        self.with_code(json!(self.kind.connect_code()))
    }

    fn with_code(&self, code: Value) -> Value {
        let mut body = json!({ "code": code, "message": self.message });
        if let Some(node) = &self.node {
            body["node"] = json!(node);
        }
        body
    }

    /// The answer with a body. Clients are told whether to send the request again.
    pub(crate) fn response_with(&self, body: &Value) -> Response {
        let mut response = (self.kind.status(), body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let after = self.outcome.seconds().filter(|_| self.kind.is_retried());
        let should_retry = HeaderValue::from_static(if after.is_some() { "true" } else { "false" });
        headers.insert(SHOULD_RETRY, should_retry);
        if let Some(seconds) = after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        set_outcome(&mut response, self.outcome);
        response
    }
}

impl IntoResponse for E2bError {
    fn into_response(self) -> Response {
        self.response_with(&self.body())
    }
}

/// The message for a sandbox that is gone, with its id where that helps. Clients look for "was not found".
pub(super) fn not_found(id: Option<&str>, why: &str) -> String {
    let is_shown = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let id: String = id.unwrap_or_default().chars().filter(is_shown).take(64).collect();
    let space = if id.is_empty() { "" } else { " " };
    format!("the sandbox{space}{id} was not found: {why}")
}

/// The body of an error with this status and message.
pub(crate) fn body(status: StatusCode, message: &str) -> serde_json::Value {
    json!({ "code": status.as_u16(), "message": message })
}

fn kind_of_execution(error: &ExecuteError) -> ErrorKind {
    match Failure::of(error) {
        Failure::Busy | Failure::ImageComing | Failure::Stopping => ErrorKind::Busy,
        Failure::SessionBusy => ErrorKind::Exhausted,
        Failure::NoSandbox | Failure::Sandbox | Failure::Cancelled => ErrorKind::Internal,
    }
}

fn kind_of_agent(error: &AgentError) -> ErrorKind {
    match error {
        AgentError::NotFound(_) | AgentError::NoProcess(_) => ErrorKind::NotFound,
        AgentError::IsFolder(_)
        | AgentError::NotFolder(_)
        | AgentError::NotFile(_)
        | AgentError::TooLong { .. }
        | AgentError::NoSignal(_)
        | AgentError::NotStarted { .. }
        | AgentError::System { .. } => ErrorKind::Invalid,
        AgentError::Exists(_) => ErrorKind::Exists,
        AgentError::NotEmpty(_) | AgentError::NoInput(_) | AgentError::NoTerminal(_) => {
            ErrorKind::Conflict
        }
        AgentError::NoSpace(_) => ErrorKind::NoSpace,
        AgentError::Denied(_) => ErrorKind::Denied,
        AgentError::TooMany(_) | AgentError::Overrun | AgentError::NoRoomForList => {
            ErrorKind::Exhausted
        }
        AgentError::InputNotRead(_) | AgentError::ListLate => ErrorKind::TimedOut,
        AgentError::Lost(_) => ErrorKind::Internal,
        AgentError::Session(error) => kind_of_session(error),
    }
}

fn kind_of_session(error: &SessionError) -> ErrorKind {
    match error {
        SessionError::Ended(_) | SessionError::Paused => ErrorKind::SandboxGone,
        SessionError::Busy => ErrorKind::Exhausted,
        SessionError::Admission(_) => ErrorKind::Busy,
        SessionError::Files(_) => ErrorKind::NoSpace,
        SessionError::Command(_) | SessionError::TooLarge(_) | SessionError::NoFolder(_) => {
            ErrorKind::Invalid
        }
        SessionError::NoKernel => ErrorKind::Conflict,
        SessionError::NoSuchFile(_) => ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use isolator_pool::pool::session::EndReason;
    use isolator_pool::pool::session::agent::TooMany;

    use super::*;

    #[test]
    fn clients_repeat_only_what_can_succeed_later() {
        for (kind, should_retry) in [
            (ErrorKind::Busy, "true"),
            (ErrorKind::Exhausted, "true"),
            (ErrorKind::SandboxGone, "false"),
            (ErrorKind::NotOffered, "false"),
            (ErrorKind::Invalid, "false"),
            (ErrorKind::TimedOut, "false"),
        ] {
            let response = E2bError::new(kind, "no").into_response();
            assert_eq!(response.headers()[SHOULD_RETRY], should_retry, "{kind:?}");
            assert_eq!(response.status(), kind.status());
        }
    }

    #[test]
    fn a_client_is_refused_for_its_own_share_and_a_full_server_for_all() {
        for (is_own_share, status) in [(true, 429), (false, 503)] {
            for failure in [
                OpenFailure::AllInUse { most: 1, is_own_share },
                OpenFailure::Full { most: 1, is_own_share },
            ] {
                let response = E2bError::of_call(failure.into()).into_response();
                assert_eq!(response.status(), status);
                assert_eq!(response.headers()[SHOULD_RETRY], "true");
                assert_eq!(response.headers()[RETRY_AFTER], "30");
            }
        }
    }

    #[test]
    fn a_request_of_which_a_part_may_have_run_is_not_repeated() {
        let ended = SessionError::Ended(EndReason::ServerStops);
        for error in [
            E2bError::of_session(ended),
            E2bError::of_agent(AgentError::Overrun),
            E2bError::of_agent(AgentError::TooMany(TooMany::Processes)).after_a_part(),
        ] {
            assert_eq!(error.outcome(), CallOutcome::Unknown, "{error}");
            assert_eq!(error.into_response().headers()[SHOULD_RETRY], "false");
        }
        let many = E2bError::of_agent(AgentError::TooMany(TooMany::Processes));
        assert_eq!(many.into_response().headers()[SHOULD_RETRY], "true");
    }

    #[test]
    fn the_body_has_the_code_that_its_readers_expect() {
        let error = E2bError::invalid("timeout", "is negative");
        assert_eq!(error.body(), json!({ "code": 400, "message": "timeout: is negative" }));
        let connect = json!({ "code": "invalid_argument", "message": "timeout: is negative" });
        assert_eq!(error.connect_body(), connect);
    }
}
