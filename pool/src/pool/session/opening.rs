//! The beginning of a session: its kernel gets ready, and a task takes its sandbox.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_runner::wire::{self, Failed, FailedCause, Kernel, Kind, Opened, Wanted, WireError};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::Hub;
use super::task::{FREEZE_AFTER, Held, Task};
use super::usage::{OtherMessages, Samples};
use super::words::interpreter_of;
use super::{EndReason, LossError, OpenedSession, Session, SessionError, SessionRequest, State};
use crate::pool::Shared;
use crate::pool::admission::Admitted;
use crate::quote::said;
use crate::run::Prepared;
use crate::run::exchange::{ExchangeError, Place, RunnerReport, Step, exchange, message};
use crate::run::installs::Installs;
use crate::sandbox::connection::ConnectionError;
use crate::sandbox::{Armed, KernelFork, Sandbox};

/// Longest time for a kernel to get ready: longer than the runner allows it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(25);

/// Makes a session of a sandbox that can take a job.
///
/// # Errors
///
/// See [`SessionError`].
pub(crate) async fn open(
    sandbox: &mut Sandbox<Armed>,
    request: &SessionRequest,
    prepared: Prepared,
    tasks: &TaskTracker,
) -> Result<(Opened, Option<ComingKernel>), SessionError> {
    let Prepared { interpreter, packages, kernel: fork, .. } = prepared;
    let wanted = if fork.is_some() { Wanted::Forked } else { interpreter };
    let kernel = request.kernel.as_ref().map(|kernel| Kernel {
        interpreter: kernel.interpreter,
        argv: kernel.argv.clone(),
        waiting: kernel.waiting.clone(),
        env: kernel.env.clone(),
        wanted,
        packages,
    });
    let workdir = sandbox.spec.workdir.clone();
    let checkpoints = request.checkpoints.min(sandbox.spec.limits.pids / 4);
    let message = message(Kind::Session, &wire::Session { kernel, workdir, checkpoints })?;
    let coming = fork.as_ref().map(|fork| tasks.spawn(sandbox.fork_kernel(fork)));
    match exchange(sandbox, message, OPEN_TIMEOUT, Place::First, take_opened).await? {
        RunnerReport::Done(opened) => Ok(match fork {
            Some(KernelFork { version, .. }) => {
                (Opened { version: Some(version), ..opened }, coming.map(ComingKernel))
            }
            None => (opened, None),
        }),
        RunnerReport::Failed(Failed { cause: FailedCause::Packages, message }) => {
            if let Some(set) = &request.packages {
                sandbox.engine.missed(set);
            }
            Err(SessionError::Ended(EndReason::lost(LossError::NotBound(said(&message)))))
        }
        RunnerReport::Failed(failed) => Err(SessionError::Command(said(&failed.message))),
    }
}

fn take_opened(kind: Kind, payload: &[u8]) -> Result<Step<RunnerReport<Opened>>, WireError> {
    let report = RunnerReport::<Opened>::read(Kind::Opened, kind, payload)?;
    report.map(Step::Last).ok_or(WireError::Unexpected(kind))
}

/// A kernel that is being forked into the sandbox of a session, which is open already.
pub(crate) struct ComingKernel(JoinHandle<bool>);

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

/// Begins to serve a session in its sandbox, for the client that has the slot.
pub(crate) fn begin(
    sandbox: Sandbox<Armed>,
    opened: Opened,
    kernel: Option<ComingKernel>,
    request: &SessionRequest,
    slot: Admitted,
    shared: &Arc<Shared>,
    abort: CancellationToken,
) -> Session {
    let image = sandbox.spec.image.digest.clone();
    let limit = request.resources.memory.as_bytes();
    let state = Arc::new(State {
        end: CancellationToken::new(),
        ended: watch::Sender::new(None),
        interrupt: Notify::new(),
        running_since: Mutex::new(None),
        is_frozen: AtomicBool::new(false),
        memory: AtomicU64::new(opened.memory.unwrap_or(0).min(limit)),
        measured: Notify::new(),
        usage: Samples::new(request.resources),
    });
    // Only the call that has the turn sends, so there is at most one.
    let (commands, received) = mpsc::channel(1);
    let turn = Arc::new(Semaphore::new(1));
    let agent = Arc::new(Hub::new());
    let task = Task {
        shared: Arc::clone(shared),
        admission: slot.admission.clone(),
        client: slot.client.clone(),
        abort,
        state: Arc::clone(&state),
        turn: Arc::clone(&turn),
        agent: Arc::clone(&agent),
        installs: Arc::new(Installs::new(&sandbox, request.installer.clone(), &shared.tasks)),
        cells: 0,
        awake_until: Instant::now() + FREEZE_AFTER,
        is_resting: false,
        failed_freezes: 0,
        memory_limit: limit,
        kernel,
    };
    shared.tasks.spawn(task.serve(Held::resting(sandbox, slot), received));
    let kernel = request.kernel.as_ref();
    let interpreter = kernel.map(|kernel| interpreter_of(kernel.interpreter, opened.version));
    Session {
        commands,
        turn,
        waiting: AtomicUsize::new(0),
        _end: state.end.clone().drop_guard(),
        shared: state,
        opened: OpenedSession { interpreter, preloaded: opened.preloaded },
        image,
        agent,
    }
}
