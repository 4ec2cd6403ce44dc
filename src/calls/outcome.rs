//! Whether the program of a call has run, and where a call that did not run may be served.

use std::time::Duration;

use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::admission::AdmissionError;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::run::RunError;

use super::CallError;
use crate::packages::Refusal;
use crate::sessions::OpenFailure;

/// When to try again if nothing better is known.
const SOON: Duration = Duration::from_secs(1);

/// The same while an image or a set of packages is being fetched or built.
const LATER: Duration = Duration::from_secs(30);

/// Whether the program of a call has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasRun {
    /// Nothing of it has run: the same call can be sent again, here or to another server.
    No,
    /// It has run, and the answer has its end.
    Yes,
    /// It may have run, in part or to its end.
    Unknown,
}

impl HasRun {
    /// Its name in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::No => "not-run",
            Self::Yes => "ran",
            Self::Unknown => "unknown",
        }
    }
}

/// The refusal of a call that another server may serve at once, and this one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// Whether the client alone is the reason: it has its share of this server.
    pub is_own_share: bool,
    /// When this server may serve it.
    pub retry_after: Duration,
}

impl Elsewhere {
    const fn after(retry_after: Duration) -> Self {
        Self { is_own_share: false, retry_after }
    }

    /// When to try again, in whole seconds, at least one.
    pub(crate) fn seconds(self) -> u64 {
        (self.retry_after.as_secs_f64().ceil() as u64).max(1)
    }

    fn of_admission(error: &AdmissionError) -> Self {
        match error {
            AdmissionError::QueueFull { served_in, is_own_share, .. }
            | AdmissionError::WaitedTooLong { served_in, is_own_share, .. } => {
                Self { is_own_share: *is_own_share, retry_after: served_in.unwrap_or(SOON) }
            }
            AdmissionError::Closed => Self::after(SOON),
        }
    }

    /// That of a program or a session that got no sandbox. One that does not fit into a sandbox fits into no other.
    fn of_execution(error: &ExecuteError) -> Option<Self> {
        match error {
            ExecuteError::Admission(error) => Some(Self::of_admission(error)),
            ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => Some(Self::after(LATER)),
            ExecuteError::NoSuchPool(_) | ExecuteError::Checkout(_) => Some(Self::after(SOON)),
            ExecuteError::Run(error) => {
                let fits_nowhere =
                    matches!(error, RunError::WorkspaceFull(_) | RunError::TooLarge(_));
                (error_is_before_run(error) && !fits_nowhere).then_some(Self::after(SOON))
            }
            ExecuteError::Session(_) | ExecuteError::Aborted => None,
        }
    }
}

const fn error_is_before_run(error: &RunError) -> bool {
    matches!(
        error,
        RunError::WorkspaceFull(_)
            | RunError::NotLimited(_)
            | RunError::NotForked(_)
            | RunError::Packages(_)
            | RunError::NotBound(_)
            | RunError::TooLarge(_)
    )
}

impl CallError {
    /// Whether the program has run.
    pub(crate) const fn has_run(&self) -> HasRun {
        if self.is_before_run() { HasRun::No } else { HasRun::Unknown }
    }

    /// Whether it is certain that nothing of the program has run.
    pub(crate) const fn is_before_run(&self) -> bool {
        match self {
            Self::Invalid(_)
            | Self::TooMuchAtOnce { .. }
            | Self::NoAudit(_)
            | Self::CheckBusy(_)
            | Self::Forbidden { .. }
            | Self::Packages(_)
            | Self::PackagesComing { .. }
            // A session that is not opened has run nothing of its client's.
            | Self::NotOpened(_) => true,
            Self::Sandbox(error) => match error {
                ExecuteError::NoSuchPool(_)
                | ExecuteError::Admission(_)
                | ExecuteError::Checkout(_) => true,
                ExecuteError::Run(error) => error_is_before_run(error),
                ExecuteError::Session(_) | ExecuteError::Aborted => false,
            },
            Self::Session(error) => matches!(
                error,
                SessionError::Busy
                    | SessionError::Admission(_)
                    | SessionError::Files(_)
                    | SessionError::Command(_)
                    | SessionError::NoFolder(_)
                    | SessionError::NoKernel
                    | SessionError::TooLarge(_)
            ),
            Self::NoVerdict(_) | Self::Agent(_) | Self::SessionGone(_) => false,
        }
    }

    /// How the call is refused, if another server may serve it. A cell is served only where its session is, and one whose
    /// packages are being built has waited for them: another server would begin to build them.
    pub(crate) fn elsewhere(&self) -> Option<Elsewhere> {
        match self {
            Self::TooMuchAtOnce { is_own_share, .. } => {
                Some(Elsewhere { is_own_share: *is_own_share, retry_after: SOON })
            }
            Self::NoAudit(_) => Some(Elsewhere::after(SOON)),
            Self::CheckBusy(busy) => Some(Elsewhere::of_admission(&busy.0)),
            Self::Packages(refusal) => match refusal {
                Refusal::Busy { .. }
                | Refusal::AllInUse(_)
                | Refusal::NoRoom { .. }
                | Refusal::Vanishes(_)
                | Refusal::Unusable { .. } => Some(Elsewhere::after(LATER)),
                Refusal::Stopping => Some(Elsewhere::after(SOON)),
                _ => None,
            },
            Self::Sandbox(error) | Self::NotOpened(OpenFailure::Open(error)) => {
                Elsewhere::of_execution(error)
            }
            Self::NotOpened(OpenFailure::AllInUse { is_own_share, .. }) => {
                Some(Elsewhere { is_own_share: *is_own_share, retry_after: LATER })
            }
            Self::NotOpened(OpenFailure::Random(_)) => Some(Elsewhere::after(SOON)),
            Self::Invalid(_)
            | Self::Forbidden { .. }
            | Self::PackagesComing { .. }
            | Self::NoVerdict(_)
            | Self::Session(_)
            | Self::Agent(_)
            | Self::SessionGone(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::arguments::InvalidArgument;

    #[test]
    fn only_an_error_before_the_run_says_that_nothing_has_run() {
        let sandbox = |error| CallError::Sandbox(error).has_run();
        assert_eq!(sandbox(ExecuteError::Admission(AdmissionError::Closed)), HasRun::No);
        assert_eq!(sandbox(ExecuteError::Aborted), HasRun::Unknown);
        let invalid = CallError::from(InvalidArgument::new("stdin", "is too long"));
        assert_eq!((invalid.has_run(), invalid.elsewhere()), (HasRun::No, None));
        let coming = CallError::PackagesComing { waited: Duration::ZERO, step: None };
        assert_eq!((coming.has_run(), coming.elsewhere()), (HasRun::No, None));
    }

    #[test]
    fn a_call_is_sent_elsewhere_only_if_that_can_help() {
        let full = |is_own_share| {
            let served_in = Some(Duration::from_millis(2100));
            AdmissionError::QueueFull { running: 1, queue: 1, served_in, is_own_share }
        };
        for is_own_share in [false, true] {
            let refused = CallError::Sandbox(full(is_own_share).into()).elsewhere().unwrap();
            assert_eq!((refused.is_own_share, refused.seconds()), (is_own_share, 3));
        }
        let open = OpenFailure::Open(AdmissionError::Closed.into());
        assert_eq!(CallError::NotOpened(open).elsewhere().map(Elsewhere::seconds), Some(1));
        // Its session is here.
        let cell = CallError::Session(SessionError::Admission(full(false)));
        assert_eq!((cell.has_run(), cell.elsewhere()), (HasRun::No, None));
        assert_eq!(CallError::Sandbox(ExecuteError::Aborted).elsewhere(), None);
    }
}
