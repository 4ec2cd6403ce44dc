//! The kernel of a session that is open already, while it is forked.

use std::time::Duration;

use isolator_runner::wire::{self, Kind, Opened, WireError};
use tokio::task::JoinHandle;

use super::usage::OtherMessages;
use super::{EndReason, LossError};
use crate::quote::said;
use crate::run::exchange::{ExchangeError, Place, RunnerReport, Step, exchange, message};
use crate::sandbox::connection::ConnectionError;
use crate::sandbox::{Armed, Sandbox};

/// Longest time for a kernel to get ready: longer than the runner allows it.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(25);

/// A kernel that is being forked into the sandbox of a session, which is open already.
pub(crate) struct ComingKernel(pub(super) JoinHandle<bool>);

impl ComingKernel {
    /// Waits for it, and tells the runner, which then has a kernel: this one, or another if it does not come. Returns the memory of the
    /// sandbox.
    pub(super) async fn arrive(
        self,
        sandbox: &mut Sandbox<Armed>,
        others: &OtherMessages<'_>,
    ) -> Result<Option<u64>, EndReason> {
        let comes = self.0.await.unwrap_or_default();
        let lost = |error: ExchangeError| EndReason::lost(error);
        let message = message(Kind::KernelFork, &wire::KernelFork { comes });
        let message = message.map_err(|error| lost(ConnectionError::from(error).into()))?;
        let place = Place::InSession(others, None);
        match exchange(sandbox, message, OPEN_TIMEOUT, place, take_opened).await.map_err(lost)? {
            RunnerReport::Done(opened) => {
                if let Some(why) = &opened.not_ready {
                    sandbox.kernel_not_ready(why);
                }
                Ok(opened.memory)
            }
            RunnerReport::Failed(failed) => {
                Err(EndReason::lost(LossError::NoKernel(said(&failed.message))))
            }
        }
    }
}

pub(super) fn take_opened(
    kind: Kind,
    payload: &[u8],
) -> Result<Step<RunnerReport<Opened>>, WireError> {
    let report = RunnerReport::<Opened>::read(Kind::Opened, kind, payload)?;
    report.map(Step::Last).ok_or(WireError::Unexpected(kind))
}
