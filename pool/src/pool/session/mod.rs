//! Sessions: a sandbox that is taken from its pool for one client, and serves one cell after the other until it ends.
//!
//! A task holds the sandbox, so that a caller that goes away takes nothing with it: the task has the runner undo the cell.
//! A moment after the last answer it freezes the sandbox, and the next call thaws it. As long as the sandbox is
//! thawed, the session has one of the slots for requests.

pub mod agent;
mod between;
mod coming;
mod completing;
mod contexts;
mod done;
mod end;
mod files;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod opening;
mod output;
mod task;
mod usage;
mod waits;
mod words;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use isolator_runner::wire::session::{FOR_PROGRAMS, MAX_COMPLETED_TEXT};
pub use isolator_runner::wire::{
    CellEnd, CellRun, Completed, NoCheckpoint, Occasion, Rewound, UndoneFiles,
};
use isolator_runner::wire::{
    ContextClosed, Interpreter, MAX_PATH, OpenContext, Opened, OutputLimits, WantedFiles, WireError,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::engine::limits::Resources;
use crate::lock::lock;
use crate::packages::PackageSet;
use crate::pool::admission::AdmissionError;
use crate::quote::Said;
use crate::run::installs::Installer;
use crate::run::outcome::{ChangedFile, Outcome};
use crate::run::output::Watch;
use crate::run::workspace::Workspace;

pub(crate) use self::coming::ComingKernel;
pub use self::done::Done;
pub use self::end::{EndReason, LossError, ProgramEnd};
pub use self::files::FileReadError;
pub(crate) use self::opening::{begin, open};
pub use self::output::ShownWatch;
pub use self::usage::UsageSample;
use self::waits::{MAX_WAITING, Waits};

/// Path of the program that runs the cells of an interpreter. A command that ends with it starts the kernel of a session.
pub const fn kernel_path(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => isolator_runner::paths::PYTHON_KERNEL,
        Interpreter::Node => isolator_runner::paths::NODE_KERNEL,
    }
}

/// The description of a new session.
#[derive(Debug, Clone)]
pub struct SessionRequest {
    /// The kernel that runs cells of code, if the language has one.
    pub kernel: Option<KernelCommand>,
    /// Limits of its sandbox.
    pub resources: Resources,
    /// The set of packages that its cells can import from, if any.
    pub packages: Option<Arc<PackageSet>>,
    /// Serves its programs' requests for packages. Without one they are refused.
    pub installer: Option<Arc<dyn Installer>>,
    /// Maximum number of checkpoints. Each is a process of the sandbox.
    pub checkpoints: u32,
    /// How long it waits for a slot, if not for as long as others.
    pub max_queue: Option<Duration>,
}

/// The command of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCommand {
    /// Its interpreter.
    pub interpreter: Interpreter,
    /// The command that starts it: that of the language, for [`kernel_path`].
    pub argv: Vec<String>,
    /// The command with which an interpreter waits that can become one.
    pub waiting: Vec<String>,
    /// Variables added to the image's.
    pub env: BTreeMap<String, String>,
}

/// A session that can take cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedSession {
    /// The interpreter of its cells and the version, if it has one.
    pub interpreter: Option<String>,
    /// Whether that was started ahead.
    pub preloaded: bool,
}

/// A call that runs something in a session.
#[derive(Debug, Clone)]
pub struct CellRequest {
    /// The kind of call.
    pub run: CellRun,
    /// The files that come with it.
    pub workspace: Workspace,
    /// Those of them that are added to the end of files that are there. The others replace them.
    pub appended: Vec<String>,
    /// The code, or a program's standard input.
    pub input: Vec<u8>,
    /// From its start to its end.
    pub timeout: Duration,
    /// Limits of the output that is kept.
    pub output: OutputLimits,
    /// Maximum size of the things that it shows, in bytes.
    pub shown: u64,
    /// Which of the files that it creates or changes are returned, if any.
    pub files: Option<WantedFiles>,
    /// Callback for the beginning of the output while it runs.
    pub watch: Option<Watch>,
    /// Callback for the things that it shows, as they come. The outcome does not have them then.
    pub shown_watch: Option<ShownWatch>,
    /// Interrupts the cell when it is notified, and no other.
    pub interrupt: Option<Arc<Notify>>,
    /// The context whose kernel runs code. See [`Session::open_context`].
    pub context: u32,
    /// Whether the session goes on without the kernel if this is gone and there is no checkpoint. It always does in a context other
    /// than 0.
    pub keeps_session: bool,
}

/// The outcome of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellOutcome {
    /// Number of the cell in its session, beginning with one.
    pub cell: u32,
    /// The same as of a program.
    pub outcome: Outcome,
    /// The end of code, as its kernel reports it; `None` for a program.
    pub end: Option<CellEnd>,
    /// The things that the cell has shown, in order.
    pub shown: Vec<ShownThing>,
    /// Number of things that it has shown and that are missing, all or in one of their forms, because they are too large together.
    pub shown_dropped: u32,
    /// Number of cells that were undone: the variables are as before them.
    pub undone: u32,
    /// The files that were undone with them; `None` if that is none.
    pub undone_files: Option<UndoneFiles>,
    /// Why there was no checkpoint before the cell, if there was none.
    pub no_checkpoint: Option<NoCheckpoint>,
    /// Number of cells that can be rewound.
    pub checkpoints: u32,
    /// Output of processes and threads of earlier cells since the last answer.
    pub background: Vec<u8>,
    /// Bytes that are missing there.
    pub background_dropped: u64,
    /// Whether the session goes on.
    pub is_alive: bool,
    /// Whether the context of the cell has no kernel anymore. It can be opened again.
    pub is_kernel_gone: bool,
    /// Where the time went.
    pub times: CellTimes,
}

/// Where the time of a cell went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellTimes {
    /// Waiting for cells before it and to be admitted.
    pub queue: Duration,
    /// Whether the sandbox was frozen.
    pub was_frozen: bool,
    /// Unpacking its files, as the runner reports.
    pub unpack: Duration,
    /// Until it began, as the runner reports: the checkpoint, or the start of a program.
    pub begin: Duration,
    /// From the first byte sent to the last received.
    pub total: Duration,
}

/// Something that a cell has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownThing {
    /// On which occasion it was shown.
    pub occasion: Occasion,
    /// Its forms: media types and contents.
    pub forms: Vec<(String, Vec<u8>)>,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// The part.
    pub content: Vec<u8>,
    /// Size of the whole file, in bytes.
    pub size: u64,
}

/// Why a call of a session has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The session has ended.
    #[error("the session has ended: {0}")]
    Ended(#[source] EndReason),
    /// The session was paused.
    #[error("the session was paused, and goes on with the next call")]
    Paused,
    /// Other calls of the session are waiting already.
    #[error("{MAX_WAITING} calls of this session are waiting already, and no more can")]
    Busy,
    /// The server is busy or stopping.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The files are larger than the workspace, or could not be written.
    #[error("the files could not be written: {0}")]
    Files(Said),
    /// The command can't be started.
    #[error("the command can't be started: {0}")]
    Command(Said),
    /// The folder in which a kernel should start is not there.
    #[error("there is no folder {0}")]
    NoFolder(Said),
    /// The context has no kernel: an earlier cell has ended it.
    #[error(
        "the interpreter of this context was ended by an earlier cell: nothing was run; run it again, and a new one is started"
    )]
    NoKernel,
    /// The request is larger than a frame.
    #[error("the command can't be started: {0}")]
    TooLarge(#[from] WireError),
    /// There is no such file, or it can't be read.
    #[error(transparent)]
    NoSuchFile(#[from] FileReadError),
}

/// A session. Dropping it, or [`Session::close`], ends it and removes its sandbox.
#[derive(Debug)]
pub struct Session {
    commands: mpsc::Sender<Asked>,
    /// The turn to send, which calls get in the order of their arrival. A call that waits for it holds its command.
    turn: Arc<Semaphore>,
    /// Number of calls that wait for their turn.
    waiting: AtomicUsize,
    shared: Arc<State>,
    /// Ends the session when it is dropped.
    _end: DropGuard,
    opened: OpenedSession,
    image: String,
    agent: Arc<agent::Hub>,
}

/// The state of a session, as its task sets it.
#[derive(Debug)]
pub(crate) struct State {
    end: CancellationToken,
    ended: watch::Sender<Option<EndReason>>,
    interrupt: Notify,
    running_since: Mutex<Option<Instant>>,
    is_frozen: AtomicBool,
    memory: AtomicU64,
    /// The sandbox was measured when it was frozen.
    measured: Notify,
    usage: usage::Samples,
}

/// A command for the task of a session, from the call that has the turn.
pub(crate) struct Asked {
    pub(crate) command: Command,
    /// Cancelled when the caller no longer waits for the answer.
    pub(crate) gone: CancellationToken,
    /// The next one comes when this is dropped.
    pub(crate) turn: OwnedSemaphorePermit,
}

/// The commands of a session's task.
pub(crate) enum Command {
    Cell {
        request: Box<CellRequest>,
        done: Done<CellOutcome>,
        answer: oneshot::Sender<Result<CellOutcome, SessionError>>,
    },
    Rewind {
        cells: u32,
        done: Done<Rewound>,
        answer: oneshot::Sender<Result<Rewound, SessionError>>,
    },
    List {
        answer: oneshot::Sender<Result<(Vec<ChangedFile>, bool), SessionError>>,
    },
    Complete {
        text: String,
        answer: oneshot::Sender<Result<Completed, SessionError>>,
    },
    Freeze {
        answer: oneshot::Sender<Result<bool, SessionError>>,
    },
    Read {
        path: String,
        offset: u64,
        length: u64,
        answer: oneshot::Sender<Result<FilePart, SessionError>>,
    },
    OpenContext {
        open: Box<OpenContext>,
        answer: oneshot::Sender<Result<Opened, SessionError>>,
    },
    CloseContext {
        context: u32,
        answer: oneshot::Sender<Result<ContextClosed, SessionError>>,
    },
}

impl Command {
    /// Answers with an error. The receiver may be gone, which is fine.
    pub(crate) fn refuse(self, error: AdmissionError) {
        let error = error.into();
        match self {
            Self::Cell { answer, .. } => drop(answer.send(Err(error))),
            Self::Rewind { answer, .. } => drop(answer.send(Err(error))),
            Self::List { answer } => drop(answer.send(Err(error))),
            Self::Complete { answer, .. } => drop(answer.send(Err(error))),
            Self::Freeze { answer } => drop(answer.send(Err(error))),
            Self::Read { answer, .. } => drop(answer.send(Err(error))),
            Self::OpenContext { answer, .. } => drop(answer.send(Err(error))),
            Self::CloseContext { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

impl Session {
    /// The interpreter of its cells.
    pub fn opened(&self) -> &OpenedSession {
        &self.opened
    }

    /// Digest of its image.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Runs a cell. A second one waits for the first. Dropping the future undoes the cell, if that is possible. Once the
    /// cell has been sent to the sandbox, `done` is called with its end, even if the caller has gone away.
    ///
    /// # Errors
    ///
    /// See [`SessionError`]. What the cell did wrong is not an error but an outcome.
    pub async fn run(
        &self,
        request: CellRequest,
        done: impl FnOnce(&Result<CellOutcome, SessionError>) + Send + 'static,
    ) -> Result<CellOutcome, SessionError> {
        let (request, done) = (Box::new(request), Box::new(done));
        self.ask(|answer| Command::Cell { request, done, answer }).await
    }

    /// Undoes the last cells of code. The number of cells that were undone is zero if
    /// there is no checkpoint before the first of them. Dropping the future before its turn has come changes nothing. Later it does
    /// not stop the rewinding: then only `done` is called with the end.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn rewind(
        &self,
        cells: u32,
        done: impl FnOnce(&Result<Rewound, SessionError>) + Send + 'static,
    ) -> Result<Rewound, SessionError> {
        let done = Box::new(done);
        self.ask(|answer| Command::Rewind { cells, done, answer }).await
    }

    /// Lists the files of the workspace. The answer is true if those are all.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn list(&self) -> Result<(Vec<ChangedFile>, bool), SessionError> {
        self.ask(|answer| Command::List { answer }).await
    }

    /// Reads up to `length` bytes of a file of the workspace.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn read(
        &self,
        path: &str,
        offset: u64,
        length: u64,
    ) -> Result<FilePart, SessionError> {
        if path.len() > MAX_PATH {
            return Err(FileReadError::PathTooLong.into());
        }
        let path = path.to_owned();
        self.ask(|answer| Command::Read { path, offset, length, answer }).await
    }

    /// Interrupts the cell that runs. Returns whether one does.
    pub fn interrupt(&self) -> bool {
        let is_running = self.is_running();
        if is_running {
            self.shared.interrupt.notify_one();
        }
        is_running
    }

    /// Whether a cell runs.
    pub fn is_running(&self) -> bool {
        self.running_since().is_some()
    }

    /// The beginning of the cell that runs, if one does.
    pub fn running_since(&self) -> Option<Instant> {
        *lock(&self.shared.running_since)
    }

    /// Whether its sandbox is frozen.
    pub fn is_frozen(&self) -> bool {
        self.shared.is_frozen.load(Ordering::Relaxed)
    }

    /// Memory of its sandbox in bytes, as it was after the last cell, or when it was frozen later.
    pub fn memory(&self) -> u64 {
        self.shared.memory.load(Ordering::Relaxed)
    }

    /// Waits until it was frozen and its memory was measured. Only one task may wait.
    pub async fn measured(&self) {
        self.shared.measured.notified().await;
    }

    /// Ends it. A cell that runs ends with it.
    pub fn close(&self) {
        self.shared.end.cancel();
    }

    /// Why it has ended, if it has.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.shared.ended.borrow().clone()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> EndReason {
        let mut ended = self.shared.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await;
        // The sender is in `self`, so the wait ends only with a reason.
        reason.ok().and_then(|reason| reason.clone()).unwrap_or(EndReason::Closed)
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, SessionError>>) -> Command,
    ) -> Result<T, SessionError> {
        // When the session has ended, turns and commands are no longer taken.
        let Some(turn) = self.turn().await? else { return Err(self.ended_error().await) };
        self.ask_in_turn(turn, command).await
    }

    async fn ask_in_turn<T>(
        &self,
        turn: OwnedSemaphorePermit,
        command: impl FnOnce(oneshot::Sender<Result<T, SessionError>>) -> Command,
    ) -> Result<T, SessionError> {
        let (sender, answer) = oneshot::channel();
        let gone = CancellationToken::new();
        // It is cancelled when this future is dropped.
        let _guard = gone.clone().drop_guard();
        let asked = Asked { command: command(sender), gone, turn };
        if self.commands.send(asked).await.is_err() {
            return Err(self.ended_error().await);
        }
        match answer.await {
            Ok(answer) => answer,
            // The task has ended before it came to this.
            Err(_) => Err(self.ended_error().await),
        }
    }

    /// Waits for its turn; `None` if the session has ended.
    async fn turn(&self) -> Result<Option<OwnedSemaphorePermit>, SessionError> {
        if let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(Some(turn));
        }
        let Some(_waits) = Waits::begin(&self.waiting) else { return Err(SessionError::Busy) };
        Ok(Arc::clone(&self.turn).acquire_owned().await.ok())
    }

    async fn ended_error(&self) -> SessionError {
        SessionError::Ended(self.ended().await)
    }
}
