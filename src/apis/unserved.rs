//! Why a request of an API for computing rewards has no result.

use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::error_chain::error_chain;
use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::run::RunError;

use super::Protocol;
use crate::calls::{Again, CallError, CallOutcome};
use crate::request::arguments::InvalidArgument;
use crate::result::context::ArgumentNames;
use crate::sessions::OpenFailure;
use crate::web::{Refused, set_outcome};

/// Why a program has no end.
pub(super) enum Unserved {
    /// A field can't be used.
    Invalid(InvalidArgument),
    /// There is no room for it at this moment, for the reason; it may be served after this many seconds.
    Busy(String, u64, CallOutcome),
    /// It took too long, for the reason, and may have run.
    Late(String),
    /// The sandbox failed.
    Failed(String, CallOutcome),
    /// The client is gone.
    Gone,
}

impl Unserved {
    /// Nothing has run, for the reason; it may be served a second later.
    pub(super) fn busy(reason: impl Into<String>) -> Self {
        Self::Busy(reason.into(), 1, CallOutcome::NotRun(Again::Later(1)))
    }

    /// It took too long, and may have run.
    pub(super) fn late(reason: &str) -> Self {
        Self::Late(reason.to_owned())
    }

    /// Whether it has run.
    pub(super) const fn outcome(&self) -> CallOutcome {
        match self {
            Self::Invalid(_) => CallOutcome::NotRun(Again::Never),
            Self::Busy(.., outcome) | Self::Failed(_, outcome) => *outcome,
            Self::Late(_) | Self::Gone => CallOutcome::Unknown,
        }
    }

    /// The same when a part of it has run.
    pub(super) fn after_a_part(self) -> Self {
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

/// Why a request was not read.
pub(super) enum Unread {
    Refused(Refused),
    Invalid(InvalidArgument),
}

impl From<Refused> for Unread {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<InvalidArgument> for Unread {
    fn from(error: InvalidArgument) -> Self {
        Self::Invalid(error)
    }
}

/// Why a call of an API was not served, in its words.
pub(super) fn unserved(error: CallError, names: &ArgumentNames) -> Unserved {
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

/// The answer to a client that is most likely gone.
pub(super) fn gone(protocol: Protocol) -> Response {
    let message = "the connection was closed before the program ended, so it was ended, too";
    let mut response = protocol.error(StatusCode::REQUEST_TIMEOUT, message);
    set_outcome(&mut response, CallOutcome::Unknown);
    response
}
