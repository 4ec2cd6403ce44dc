//! The beginning of a session: its kernel gets ready, and a task takes its sandbox.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use isolator_runner::wire::{self, Failed, FailedCause, Kernel, Kind, Opened, Wanted};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::Hub;
use super::coming::{ComingKernel, OPEN_TIMEOUT, take_opened};
use super::task::{FREEZE_AFTER, Held, Task};
use super::usage::Samples;
use super::words::interpreter_of;
use super::{EndReason, LossError, OpenedSession, Session, SessionError, SessionRequest, State};
use crate::pool::Shared;
use crate::pool::admission::Admitted;
use crate::quote::said;
use crate::run::Prepared;
use crate::run::exchange::{Place, RunnerReport, exchange, message};
use crate::run::installs::Installs;
use crate::sandbox::{Armed, KernelFork, Sandbox};

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
