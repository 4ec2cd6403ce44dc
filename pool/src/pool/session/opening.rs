//! How a session begins: its kernel gets ready, and a task takes its sandbox.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_runner::wire::{self, Failed, FailedCause, Kernel, Kind, Opened};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::exchange::{exchange, parse, told, unexpected};
use super::task::{Held, Task};
use super::{EndReason, OpenedSession, Session, SessionError, SessionRequest, State};
use crate::pool::Shared;
use crate::pool::admission::Admission;
use crate::run::{Prepared, shortened};
use crate::sandbox::{Armed, Sandbox};

/// How long a kernel may take to get ready: longer than the runner allows it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(25);

/// Starts a session in a sandbox that can take a job.
///
/// # Errors
///
/// Why it does not start.
pub(crate) async fn start(
    mut sandbox: Sandbox<Armed>,
    request: &SessionRequest,
    prepared: Prepared,
    shared: &Arc<Shared>,
    admission: Admission,
    abort: CancellationToken,
) -> Result<Session, SessionError> {
    let Prepared { interpreter: wanted, packages, .. } = prepared;
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
    let session = wire::Session { kernel, workdir, checkpoints };
    let mut message = Vec::new();
    wire::push_message(&mut message, Kind::Session, &session)
        .map_err(|error| SessionError::Command(error.to_string()))?;
    let opened =
        exchange(&mut sandbox, message, None, OPEN_TIMEOUT, |(kind, payload), _| match kind {
            Kind::Opened => parse::<Opened>(kind, &payload).map(|opened| Some(Ok(opened))),
            Kind::Failed => parse::<Failed>(kind, &payload).map(|failed| Some(Err(failed))),
            other => Err(unexpected(other)),
        });
    let opened = match opened.await {
        Ok(Ok(opened)) => opened,
        Ok(Err(failed)) if failed.cause == FailedCause::Packages => {
            if let Some(set) = &request.packages {
                sandbox.engine.missed(set);
            }
            let why = format!("it did not get its packages: {}", shortened(&failed.message));
            return Err(SessionError::Ended(EndReason::Lost(why)));
        }
        Ok(Err(failed)) => return Err(SessionError::Command(shortened(&failed.message))),
        Err(broken) => return Err(SessionError::Ended(EndReason::Lost(told(&broken)))),
    };
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
    });
    // Whose turn it is sends, so there is at most one.
    let (commands, received) = mpsc::channel(1);
    let turn = Arc::new(Semaphore::new(1));
    let task = Task {
        shared: Arc::clone(shared),
        admission,
        abort,
        state: Arc::clone(&state),
        turn: Arc::clone(&turn),
        cells: 0,
        is_resting: false,
        failed_freezes: 0,
        memory_limit: limit,
    };
    shared.tasks.spawn(task.serve(Held::Awake(sandbox), received));
    let interpreter = opened.interpreter.map(|name| name.chars().take(100).collect());
    Ok(Session {
        commands,
        turn,
        waiting: AtomicUsize::new(0),
        _end: state.end.clone().drop_guard(),
        shared: state,
        opened: OpenedSession { interpreter, preloaded: opened.preloaded },
        image,
    })
}
