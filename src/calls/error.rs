//! Why a call was not served.

use std::time::Duration;

use isolator_pool::pool::counts::Failure;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::pool::session::agent::AgentError;

use crate::duration;
use crate::node::LostHandle;
use crate::packages::Refusal;
use crate::policy::{Findings, NoTurn};
use crate::request::arguments::InvalidArgument;
use crate::request::syntax::NoVerdict;
use crate::sessions::gone::{Gone, Why, gone_of};
use crate::sessions::journals::ReadError;
use crate::sessions::{NoSession, OpenFailure, OpenSession};

/// Why a call was not served. The failure of a program is not an error but an outcome.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// An argument can't be used.
    #[error(transparent)]
    Invalid(#[from] InvalidArgument),
    /// The requests being served take too much memory.
    #[error("the requests being served hold more than {} MiB together", .most >> 20)]
    TooMuchAtOnce {
        /// The bytes that they can have.
        most: usize,
        /// Whether there is room, and the client has its share.
        is_own_share: bool,
    },
    /// The audit log can't be written, and the operator wants nothing to be served then.
    #[error("{0}")]
    NoAudit(&'static str),
    /// Too many programs wait for their check against the policies.
    #[error(transparent)]
    CheckBusy(#[from] NoTurn),
    /// The policies forbid something in the program.
    #[error("the operator of this server forbids something in the program:\n{found}")]
    Forbidden { found: Findings, notes: Vec<String> },
    /// The packages don't exist, or could not be built.
    #[error(transparent)]
    Packages(#[from] Refusal),
    /// The packages are still being built, and the call can't wait longer.
    #[error("the packages are still being built after {}", progress(.waited, .step.as_deref()))]
    PackagesComing {
        /// How long it has waited.
        waited: Duration,
        /// The last step of the build.
        step: Option<String>,
    },
    /// The sandbox failed, not the program.
    #[error(transparent)]
    Sandbox(#[from] ExecuteError),
    /// A check of syntax gave no verdict.
    #[error(transparent)]
    NoVerdict(#[from] NoVerdict),
    /// The session could not be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenFailure),
    /// The journal of a session of another node can't be read.
    #[error("{}", isolator_pool::error_chain::error_chain(.0))]
    Journal(#[from] ReadError),
    /// The step has no outcome, and the session goes on.
    #[error(transparent)]
    Session(SessionError),
    /// A process or file of a session could not be used.
    #[error(transparent)]
    Agent(AgentError),
    /// The session that the call names is gone.
    #[error("the session is gone: {}", .0.why)]
    SessionGone(Box<Gone>),
    /// The session has ended during the call.
    #[error("the session is gone: {}", .0.why)]
    SessionEnded(Box<Gone>),
    /// A handle of another node, or of this one before it was started again.
    #[error("the {} is gone: {}", .0.thing().word(), .0)]
    Lost(Box<LostHandle>),
}

impl CallError {
    /// The error of a call that named a session.
    pub(super) fn no_session(handle: &str, error: NoSession) -> Self {
        match error {
            NoSession::Gone(gone) => Self::SessionGone(gone),
            NoSession::Lost(lost) => Self::Lost(lost),
            NoSession::Unknown => InvalidArgument::no_such_session("session", handle).into(),
        }
    }

    /// The error of a step in a session.
    pub(super) fn of_session(error: SessionError, session: &OpenSession) -> Self {
        match error {
            SessionError::Ended(reason) => {
                Self::SessionEnded(Box::new(gone_of(session, Why::Ended(reason))))
            }
            error => Self::Session(error),
        }
    }

    /// The same error; one of packages is that of the argument which named them, if a caller can correct it there.
    pub(super) fn in_field(self, field: &'static str) -> Self {
        match self {
            Self::Packages(refusal) if refusal.is_of_arguments() => {
                let message = match field {
                    "packages" => refusal.to_string(),
                    _ => format!("in its block \"# /// script\", {refusal}"),
                };
                InvalidArgument::new(field, message).into()
            }
            error => error,
        }
    }

    /// The status for the audit log and traces.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_arguments",
            Self::Forbidden { .. } => "refused",
            Self::SessionGone(_) | Self::SessionEnded(_) | Self::Lost(_) => "session_gone",
            Self::Sandbox(error) | Self::NotOpened(OpenFailure::Open(error)) => {
                Failure::of(error).as_str()
            }
            Self::CheckBusy(busy) => failure_of(busy).as_str(),
            Self::TooMuchAtOnce { .. }
            | Self::NoAudit(_)
            | Self::Packages(_)
            | Self::PackagesComing { .. }
            | Self::NoVerdict(_)
            | Self::NotOpened(_)
            | Self::Journal(_)
            | Self::Agent(_)
            | Self::Session(_) => "error",
        }
    }

    /// Writes it to the server's log, if an operator should know of it.
    pub(crate) fn log(&self) {
        match self {
            Self::CheckBusy(_) | Self::Sandbox(_) | Self::NoVerdict(_) | Self::NotOpened(_) => {
                tracing::warn!(error = %self, "a call failed");
            }
            Self::Packages(_) => tracing::info!(refusal = %self, "a call got no packages"),
            _ => {}
        }
    }
}

/// The kind of failure of a program that was not checked, for counts.
pub(super) fn failure_of(busy: &NoTurn) -> Failure {
    Failure::of(&ExecuteError::Admission(busy.0.clone()))
}

fn progress(waited: &Duration, step: Option<&str>) -> String {
    let step = step.map(|step| format!(" ({step})")).unwrap_or_default();
    format!("{}{step}", duration::shown(*waited))
}
