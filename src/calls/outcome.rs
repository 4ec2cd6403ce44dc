//! The outcome of a call in three words: it did not run, it ran, or that is unknown. Clients and load balancers decide with it
//! whether to send the call again. `docs/outcomes.md` has each way to fail.

use std::time::Duration;

use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::admission::AdmissionError;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::pool::session::agent::AgentError;
use isolator_pool::run::RunError;

use super::{CallError, Served};
use crate::packages::Refusal;
use crate::sessions::OpenFailure;
use crate::sessions::journals::ReadError;

/// Whether a call has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Nothing of it has run, and nothing will.
    NotRun(Again),
    /// It has run, or still runs. A program that failed has run, too.
    Ran,
    /// It may have run, as a whole or in part.
    Unknown,
}

/// Whether a call that did not run can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// The same call would be refused again.
    Never,
    /// After this many seconds, or at once at another server.
    Later(u64),
    /// After this many seconds, when other calls of the same client are done.
    AfterOwn(u64),
    /// After this many seconds, at this server: what it uses is here.
    Here(u64),
}

impl CallOutcome {
    /// Its word in headers and answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NotRun(_) => "not-run",
            Self::Ran => "ran",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it is certain that nothing has run.
    pub(crate) const fn is_not_run(self) -> bool {
        matches!(self, Self::NotRun(_))
    }

    /// When a call that did not run can be sent again, if it can.
    pub(crate) const fn seconds(self) -> Option<u64> {
        match self {
            Self::NotRun(
                Again::Later(seconds) | Again::AfterOwn(seconds) | Again::Here(seconds),
            ) => Some(seconds),
            Self::NotRun(Again::Never) | Self::Ran | Self::Unknown => None,
        }
    }

    /// The same for a call that names something which only this server has.
    pub(crate) const fn here(self) -> Self {
        match self {
            Self::NotRun(Again::Later(seconds)) => Self::NotRun(Again::Here(seconds)),
            other => other,
        }
    }

    /// The outcome of a call that was served or not.
    pub(crate) fn of(served: &Result<Served, CallError>) -> Self {
        served.as_ref().map_or_else(CallError::outcome, Served::outcome)
    }
}

/// The next call can be sent a moment later.
const SOON: Again = Again::Later(1);

impl Served {
    /// Whether it has run.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Checked(_) => CallOutcome::NotRun(Again::Never),
            // Its session goes on.
            Self::Ran(ran) if !ran.has_begun() => CallOutcome::NotRun(Again::Here(1)),
            Self::Ran(_)
            | Self::Opened(_)
            | Self::Rewound { .. }
            | Self::Interrupted(_)
            | Self::Closed(_) => CallOutcome::Ran,
        }
    }
}

impl CallError {
    /// Whether the call has run.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Invalid(_)
            | Self::Forbidden { .. }
            | Self::SessionGone(_)
            | Self::NoVerdict(_)
            | Self::Journal(ReadError::Seal(_) | ReadError::Record(_)) => {
                CallOutcome::NotRun(Again::Never)
            }
            Self::Journal(ReadError::Server(_)) => CallOutcome::NotRun(SOON),
            Self::TooMuchAtOnce { is_own_share, .. } => CallOutcome::NotRun(when(*is_own_share, 1)),
            Self::NoAudit(_) => CallOutcome::NotRun(SOON),
            Self::Packages(refusal) => CallOutcome::NotRun(without_packages(refusal)),
            // Another server would only begin to build them.
            Self::PackagesComing { .. } => CallOutcome::NotRun(Again::Here(1)),
            Self::CheckBusy(busy) => CallOutcome::NotRun(when_admitted(&busy.0)),
            Self::Sandbox(error) => of_execution(error),
            // A session that is not open has run nothing that could be seen.
            Self::NotOpened(OpenFailure::Open(ExecuteError::Admission(busy))) => {
                CallOutcome::NotRun(when_admitted(busy))
            }
            Self::NotOpened(OpenFailure::Open(ExecuteError::Checkout(
                CheckoutError::ImageComing { .. },
            ))) => CallOutcome::NotRun(Again::Later(60)),
            Self::NotOpened(
                OpenFailure::AllInUse { is_own_share, .. } | OpenFailure::Full { is_own_share, .. },
            ) => CallOutcome::NotRun(when(*is_own_share, 30)),
            Self::NotOpened(OpenFailure::Open(_) | OpenFailure::Random(_)) => {
                CallOutcome::NotRun(SOON)
            }
            Self::Session(error) => CallOutcome::of_session(error),
            Self::Agent(error) => CallOutcome::of_agent(error),
            Self::SessionEnded(_)
            // Its node may have run the call before it was lost, and a load balancer sends it again here.
            | Self::Lost(_) => CallOutcome::Unknown,
        }
    }
}

fn of_execution(error: &ExecuteError) -> CallOutcome {
    match error {
        ExecuteError::NoSuchPool(_) => CallOutcome::NotRun(Again::Never),
        ExecuteError::Admission(busy) => CallOutcome::NotRun(when_admitted(busy)),
        ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => {
            CallOutcome::NotRun(Again::Later(60))
        }
        ExecuteError::Checkout(_) => CallOutcome::NotRun(SOON),
        ExecuteError::Run(RunError::WorkspaceFull(_) | RunError::TooLarge(_)) => {
            CallOutcome::NotRun(Again::Never)
        }
        ExecuteError::Run(
            RunError::NotLimited(_)
            | RunError::NotForked(_)
            | RunError::Packages(_)
            | RunError::NotBound(_),
        ) => CallOutcome::NotRun(SOON),
        ExecuteError::Run(_) | ExecuteError::Session(_) | ExecuteError::Aborted => {
            CallOutcome::Unknown
        }
    }
}

impl CallOutcome {
    /// The outcome of a call whose step in a session has none.
    pub(crate) fn of_session(error: &SessionError) -> Self {
        match error {
            // Its session is at this server.
            SessionError::Admission(busy) => Self::NotRun(when_admitted(busy)).here(),
            // The calls of a session are its client's.
            SessionError::Busy => Self::NotRun(Again::AfterOwn(1)),
            SessionError::Paused => Self::NotRun(Again::Here(1)),
            SessionError::Command(_)
            | SessionError::NoFolder(_)
            | SessionError::NoKernel
            | SessionError::TooLarge(_)
            | SessionError::NoSuchFile(_) => Self::NotRun(Again::Never),
            // Files before the one that failed are there.
            SessionError::Files(_) | SessionError::Ended(_) => Self::Unknown,
        }
    }

    /// The outcome of a call whose process or file could not be used.
    pub(crate) fn of_agent(error: &AgentError) -> Self {
        match error {
            AgentError::Session(error) => Self::of_session(error),
            // A part may have been done before.
            AgentError::Lost(_)
            | AgentError::Overrun
            | AgentError::InputNotRead(_)
            | AgentError::ListLate
            | AgentError::NotEmpty(_)
            | AgentError::NoSpace(_)
            | AgentError::Denied(_)
            | AgentError::System { .. } => Self::Unknown,
            AgentError::TooMany(_) | AgentError::NoRoomForList => Self::NotRun(Again::AfterOwn(1)),
            AgentError::NotFound(_)
            | AgentError::IsFolder(_)
            | AgentError::NotFolder(_)
            | AgentError::NotFile(_)
            | AgentError::Exists(_)
            | AgentError::TooLong { .. }
            | AgentError::NoProcess(_)
            | AgentError::NoInput(_)
            | AgentError::NoTerminal(_)
            | AgentError::NoSignal(_)
            | AgentError::NotStarted { .. } => Self::NotRun(Again::Never),
        }
    }

    /// The same when a part of the call has run.
    pub(crate) const fn after_a_part(self) -> Self {
        match self {
            Self::NotRun(_) => Self::Unknown,
            other => other,
        }
    }
}

/// When a call that found no slot may find one.
fn when_admitted(busy: &AdmissionError) -> Again {
    match busy {
        AdmissionError::QueueFull { served_in, is_own_share, .. }
        | AdmissionError::WaitedTooLong { served_in, is_own_share, .. } => {
            when(*is_own_share, served_in.map_or(1, seconds))
        }
        AdmissionError::Closed => SOON,
    }
}

/// When a call can be sent again that found no room; `is_own_share` says that other clients would have found some.
const fn when(is_own_share: bool, seconds: u64) -> Again {
    if is_own_share { Again::AfterOwn(seconds) } else { Again::Later(seconds) }
}

/// When a call can be sent again that got no packages.
const fn without_packages(refusal: &Refusal) -> Again {
    match refusal {
        Refusal::Busy { .. }
        | Refusal::AllInUse(_)
        | Refusal::NoRoom { .. }
        | Refusal::Unusable { .. }
        | Refusal::Vanishes(_) => Again::Later(30),
        Refusal::Stopping => SOON,
        _ => Again::Never,
    }
}

/// A time in whole seconds, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0 || time.is_zero())
}

#[cfg(test)]
mod tests {
    use isolator_pool::pool::session::EndReason;

    use super::*;
    use crate::node::{Node, Thing};
    use crate::request::arguments::InvalidArgument;

    #[test]
    fn a_call_did_not_run_only_if_that_is_certain() {
        let sandbox = |error| CallError::Sandbox(error).outcome();
        let full = |is_own_share| AdmissionError::QueueFull {
            running: 1,
            queue: 1,
            served_in: Some(Duration::from_millis(2100)),
            is_own_share,
        };
        assert_eq!(sandbox(full(false).into()), CallOutcome::NotRun(Again::Later(3)));
        assert_eq!(sandbox(full(true).into()), CallOutcome::NotRun(Again::AfterOwn(3)));
        // No other server has its session.
        let cell = CallError::Session(full(false).into()).outcome();
        assert_eq!(cell, CallOutcome::NotRun(Again::Here(3)));
        let later = CallOutcome::NotRun(Again::Later(2));
        assert_eq!(later.here(), CallOutcome::NotRun(Again::Here(2)));
        assert_eq!(CallOutcome::Unknown.here(), CallOutcome::Unknown);
        let closed = ExecuteError::Admission(AdmissionError::Closed);
        assert_eq!(sandbox(closed), CallOutcome::NotRun(Again::Later(1)));
        assert_eq!(sandbox(ExecuteError::Aborted), CallOutcome::Unknown);
        let invalid = CallError::from(InvalidArgument::new("stdin", "is too long"));
        assert_eq!(invalid.outcome(), CallOutcome::NotRun(Again::Never));
        let coming = CallError::PackagesComing { waited: Duration::ZERO, step: None };
        assert_eq!(coming.outcome(), CallOutcome::NotRun(Again::Here(1)));
        let session = |error| CallError::Session(error).outcome();
        assert_eq!(session(SessionError::Busy), CallOutcome::NotRun(Again::AfterOwn(1)));
        assert_eq!(session(SessionError::Ended(EndReason::ServerStops)), CallOutcome::Unknown);
        let node = |name: &str| Node::named(name.parse().unwrap());
        let handle = node("n3").new_handle().unwrap();
        let lost = node("n1").lost(&handle, Thing::Session).unwrap();
        assert_eq!(CallError::Lost(Box::new(lost)).outcome(), CallOutcome::Unknown);
    }
}
