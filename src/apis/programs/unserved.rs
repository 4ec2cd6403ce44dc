//! Why a program of an API has no end: in words for the client, and whether it has run.

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::Response;
use isolator_pool::error_chain::error_chain;
use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::run::RunError;

use crate::apis::Protocol;
use crate::calls::{Again, CallError, CallOutcome};
use crate::request::arguments::InvalidArgument;
use crate::result::context::ArgumentNames;
use crate::sessions::OpenFailure;

/// Why a program has no end.
pub(in crate::apis) enum Unserved {
    /// A field can't be used.
    Invalid(InvalidArgument),
    /// There is no room for it at this moment, for the reason; it may be served after this many seconds.
    Busy(String, u64, CallOutcome),
    /// The sandbox failed.
    Failed(String, CallOutcome),
    /// The client is gone.
    Gone,
}

impl Unserved {
    /// Nothing has run, for the reason; it may be served a second later.
    pub(in crate::apis) fn busy(reason: impl Into<String>) -> Self {
        Self::Busy(reason.into(), 1, CallOutcome::NotRun(Again::Later(1)))
    }

    /// It took too long, and may have run.
    pub(in crate::apis) fn late(reason: &str) -> Self {
        Self::Busy(reason.to_owned(), 1, CallOutcome::Unknown)
    }

    /// Whether it has run.
    pub(in crate::apis) const fn outcome(&self) -> CallOutcome {
        match self {
            Self::Invalid(_) => CallOutcome::NotRun(Again::Never),
            Self::Busy(.., outcome) | Self::Failed(_, outcome) => *outcome,
            Self::Gone => CallOutcome::Unknown,
        }
    }

    /// The same when a part of it has run.
    pub(in crate::apis) fn after_a_part(self) -> Self {
        match self {
            Self::Busy(reason, seconds, _) => Self::Busy(reason, seconds, CallOutcome::Unknown),
            Self::Failed(reason, _) => Self::Failed(reason, CallOutcome::Unknown),
            other => other,
        }
    }
}

impl From<InvalidArgument> for Unserved {
    fn from(error: InvalidArgument) -> Self {
        Self::Invalid(error)
    }
}

/// Why a call of an API was not served, in its words.
pub(in crate::apis) fn unserved(error: CallError, names: &ArgumentNames) -> Unserved {
    let (chain, outcome) = (names.advise(&error_chain(&error)), error.outcome());
    match error {
        CallError::Invalid(error) => Unserved::Invalid(InvalidArgument::new(
            names.field(&error.field),
            names.advise(&error.message),
        )),
        CallError::Sandbox(ExecuteError::Run(RunError::WorkspaceFull(_))) => {
            Unserved::Invalid(InvalidArgument::new(names.files, chain))
        }
        CallError::Sandbox(ExecuteError::Run(RunError::TooLarge(_))) => {
            Unserved::Invalid(InvalidArgument::new("args", chain))
        }
        CallError::Packages(refusal) if refusal.is_of_arguments() => {
            Unserved::Invalid(InvalidArgument::new(names.code, chain))
        }
        CallError::Sandbox(ExecuteError::Admission(_))
        | CallError::Session(SessionError::Admission(_))
        | CallError::NotOpened(OpenFailure::Open(ExecuteError::Admission(_))) => {
            Unserved::Busy(chain, outcome.seconds().unwrap_or(1), outcome)
        }
        CallError::TooMuchAtOnce { .. }
        | CallError::NoAudit(_)
        | CallError::CheckBusy(_)
        | CallError::PackagesComing { .. }
        | CallError::NotOpened(OpenFailure::AllInUse { .. } | OpenFailure::Full { .. })
        | CallError::Sandbox(
            ExecuteError::Aborted
            | ExecuteError::Checkout(
                CheckoutError::Closed
                | CheckoutError::ImageComing { .. }
                | CheckoutError::Waited { .. },
            ),
        ) => Unserved::Busy(chain, 1, outcome),
        _ => Unserved::Failed(chain, outcome),
    }
}

/// Tells the client when to try again.
pub(in crate::apis) fn retry_after(mut response: Response, seconds: u64) -> Response {
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
    response
}

/// The answer to a client that is most likely gone.
pub(in crate::apis) fn gone(protocol: Protocol) -> Response {
    let message = "the connection was closed before the program ended, so it was ended, too";
    protocol.error(StatusCode::REQUEST_TIMEOUT, message)
}

/// The failure of a program that was not run, although nothing is known against it.
pub(super) fn not_run() -> Unserved {
    let outcome = CallOutcome::NotRun(Again::Never);
    Unserved::Failed("the program was not run".to_owned(), outcome)
}
