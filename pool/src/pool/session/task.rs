//! The task that holds a session's sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use isolator_runner::wire::{
    self, Cell, CellEnd, CellEnded, Failed, FailedCause, Kind, Read, Rewind, Rewound,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::done::{Begun, told_apart};
use super::exchange::{Broken, Signals, exchange, message, parse, told, unexpected};
use super::files;
use super::output::CellOutput;
use super::{
    Asked, CellOutcome, CellRequest, CellRun, CellTimes, Command, EndReason, SessionError, State,
};
use crate::lock::lock;
use crate::pool::Shared;
use crate::pool::admission::{Admission, Admitted, Client};
use crate::quote::said;
use crate::run::disks;
use crate::run::outcome::{Outcome, Status};
use crate::sandbox::{Armed, Paused, Sandbox};

/// How long a session stays thawed after a cell if nobody else wants its slot: the next cell of a conversation often follows at once,
/// and thawing takes longer than most cells on some engines.
pub(super) const FREEZE_AFTER: Duration = Duration::from_secs(1);

/// How long a session stays thawed if its runner does not say that it rests.
const LONGEST_UNREST: Duration = Duration::from_secs(20);

/// When freezing is tried again that has failed, as it does on a machine that is very busy, and how often.
const FREEZE_AGAIN_AFTER: Duration = Duration::from_secs(5);
const FREEZE_TRIES: u32 = 12;

/// From the first byte sent to the start of a cell: its files, a checkpoint, a kernel that does not answer.
const START_TIMEOUT: Duration = Duration::from_secs(35);

/// How much longer than a cell's own time the server waits: it is interrupted, killed, undone and reported.
const REPORT_GRACE: Duration = Duration::from_secs(15);

/// How long listing and reading files and rewinding may take.
pub(super) const SHORT_TIMEOUT: Duration = Duration::from_secs(20);

/// The sandbox of a session. As long as its programs can run it has a slot.
pub(super) enum Held {
    Awake(Sandbox<Armed>, Admitted),
    Frozen(Sandbox<Paused>),
}

impl Held {
    /// A sandbox that runs only because a call may follow.
    pub(super) fn resting(sandbox: Sandbox<Armed>, mut slot: Admitted) -> Self {
        slot.rest();
        Self::Awake(sandbox, slot)
    }
}

pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Admission,
    /// Whose session it is.
    pub(super) client: Client,
    pub(super) abort: CancellationToken,
    pub(super) state: Arc<State>,
    pub(super) turn: Arc<Semaphore>,
    /// Cells so far.
    pub(super) cells: u32,
    /// Until when the sandbox stays thawed if nobody else wants its slot.
    pub(super) awake_until: Instant,
    /// Whether the runner has said that the sandbox can be frozen.
    pub(super) is_resting: bool,
    /// How often freezing the sandbox has failed since the last call.
    pub(super) failed_freezes: u32,
    pub(super) memory_limit: u64,
}

impl Drop for Task {
    /// Tells those who wait, also if the task has panicked: by the end of their turns and of the channels, after which they look for
    /// the reason.
    fn drop(&mut self) {
        *lock(&self.state.running_since) = None;
        self.state.ended.send_if_modified(|ended| {
            let is_unknown = ended.is_none();
            ended.get_or_insert_with(|| {
                EndReason::Lost("a mistake in the server has ended it".to_owned())
            });
            is_unknown
        });
        self.turn.close();
    }
}

impl Task {
    /// Serves the commands, until the session ends. The sandbox is removed then.
    pub(super) async fn serve(mut self, held: Held, mut commands: mpsc::Receiver<Asked>) {
        let end = self.state.end.clone();
        let reason = tokio::select! {
            biased;
            () = end.cancelled() => EndReason::Closed,
            reason = self.serve_until_it_ends(held, &mut commands) => reason,
        };
        self.state.ended.send_replace(Some(reason));
    }

    async fn serve_until_it_ends(
        &mut self,
        mut held: Held,
        commands: &mut mpsc::Receiver<Asked>,
    ) -> EndReason {
        loop {
            let command = match self.next(&mut held, commands).await {
                Ok(command) => command,
                Err(reason) => return reason,
            };
            match self.freeze_or_obey(held, command).await {
                Ok(next) => held = next,
                Err(reason) => return reason,
            }
        }
    }

    /// The next command; `None` if it is time to freeze the sandbox.
    async fn next(
        &mut self,
        held: &mut Held,
        commands: &mut mpsc::Receiver<Asked>,
    ) -> Result<Option<Asked>, EndReason> {
        let (connection, slot) = match held {
            Held::Awake(sandbox, slot) => (&mut sandbox.connection, Some(&*slot)),
            Held::Frozen(sandbox) => (&mut sandbox.connection, None),
        };
        let is_awake = slot.is_some();
        let wanted = async {
            match slot {
                Some(slot) => slot.wanted().await,
                None => std::future::pending().await,
            }
        };
        let mut wanted = std::pin::pin!(wanted);
        let mut is_wanted = false;
        let (_, mut receiver) = connection.split();
        let since = Instant::now();
        loop {
            let freeze_at = if self.failed_freezes > 0 {
                since + FREEZE_AGAIN_AFTER
            } else if !self.is_resting {
                since + LONGEST_UNREST
            } else if is_wanted {
                since
            } else {
                self.awake_until
            };
            // Calls that follow each other without a pause would keep the slot from others. One that can't be given back is used.
            let takes_commands = !is_wanted || self.failed_freezes > 0;
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return Err(EndReason::ServerStops),
                () = &mut wanted, if !is_wanted => is_wanted = true,
                asked = commands.recv(), if takes_commands => {
                    return asked.map(Some).ok_or(EndReason::Closed);
                }
                frame = receiver.next() => match frame {
                    Some(Ok((Kind::Resting, _))) => self.is_resting = true,
                    Some(Ok((kind, _))) => return Err(EndReason::Lost(unexpected(kind))),
                    Some(Err(error)) => return Err(EndReason::Lost(error.to_string())),
                    None => {
                        let why = "the sandbox has ended between two calls";
                        return Err(EndReason::Lost(why.to_owned()));
                    }
                },
                () = tokio::time::sleep_until(freeze_at), if is_awake => return Ok(None),
            }
        }
    }

    async fn freeze_or_obey(
        &mut self,
        held: Held,
        asked: Option<Asked>,
    ) -> Result<Held, EndReason> {
        let Some(Asked { mut command, turn: _turn }) = asked else {
            return match held {
                Held::Awake(sandbox, slot) => self.freeze(sandbox, slot).await,
                frozen @ Held::Frozen(_) => Ok(frozen),
            };
        };
        // Whoever does not wait anymore needs nothing.
        if !command.is_wanted() {
            return Ok(held);
        }
        let arrived = Instant::now();
        let (mut sandbox, slot, was_frozen) = match held {
            Held::Awake(sandbox, mut slot) => {
                slot.work();
                (sandbox, slot, false)
            }
            Held::Frozen(sandbox) => {
                let admitted = tokio::select! {
                    biased;
                    () = command.unwanted() => return Ok(Held::Frozen(sandbox)),
                    () = self.abort.cancelled() => return Err(EndReason::ServerStops),
                    admitted = self.admission.enter(&self.client) => admitted,
                };
                match admitted {
                    Ok(slot) => (sandbox.begin_to_resume(&self.shared.makers), slot, true),
                    Err(error) => {
                        command.refuse(error);
                        return Ok(Held::Frozen(sandbox));
                    }
                }
            }
        };
        let queue = arrived.elapsed();
        // Reading and listing files need no more than their moment.
        let is_followed = matches!(command, Command::Cell { .. } | Command::Rewind { .. });
        if matches!(command, Command::Cell { .. }) {
            self.shared.counts.queue.add(queue);
        }
        self.state.is_frozen.store(false, Ordering::Relaxed);
        // The runner says it again after this command.
        (self.is_resting, self.failed_freezes) = (false, 0);
        let activity = Arc::clone(&self.shared.activity);
        let abort = self.abort.clone();
        let obeyed = async { self.obey(&mut sandbox, command, queue, was_frozen).await };
        tokio::select! {
            biased;
            () = abort.cancelled() => return Err(EndReason::ServerStops),
            obeyed = activity.during(obeyed) => obeyed?,
        }
        if is_followed {
            self.awake_until = Instant::now() + FREEZE_AFTER;
        }
        Ok(Held::resting(sandbox, slot))
    }

    /// Freezes the sandbox, and gives its slot back.
    async fn freeze(&mut self, sandbox: Sandbox<Armed>, slot: Admitted) -> Result<Held, EndReason> {
        match sandbox.pause_or_keep().await {
            Ok(Ok(mut frozen)) => {
                drop(slot);
                self.state.is_frozen.store(true, Ordering::Relaxed);
                self.measure(&mut frozen).await;
                Ok(Held::Frozen(frozen))
            }
            Ok(Err(sandbox)) => {
                self.failed_freezes += 1;
                if self.failed_freezes < FREEZE_TRIES {
                    return Ok(Held::Awake(sandbox, slot));
                }
                Err(EndReason::Lost("its processes could not be frozen".to_owned()))
            }
            Err(error) => Err(EndReason::Lost(error.to_string())),
        }
    }

    /// Looks how much memory a sandbox has that was just frozen: what goes on after the answer of a cell can have taken more.
    async fn measure(&self, frozen: &mut Sandbox<Paused>) {
        match frozen.used_memory().await {
            Ok(None) => {}
            Ok(Some(memory)) => {
                self.state.memory.store(memory.min(self.memory_limit), Ordering::Relaxed);
                self.state.measured.notify_one();
            }
            // What its last cell had is still a good guess.
            Err(error) => tracing::debug!(%error, "the memory of a session is not known"),
        }
    }

    async fn obey(
        &mut self,
        sandbox: &mut Sandbox<Armed>,
        command: Command,
        queue: Duration,
        was_frozen: bool,
    ) -> Result<(), EndReason> {
        match command {
            Command::Cell { request, gone, done, answer, .. } => {
                let done = Begun::new(done);
                // An interruption that came too late for the last one is not for this one.
                let _ = self.state.interrupt.notified().now_or_never();
                *lock(&self.state.running_since) = Some(Instant::now());
                let ran = self.cell(sandbox, &request, &gone, queue, was_frozen).await;
                *lock(&self.state.running_since) = None;
                let (outcome, end) = match ran {
                    Ok(ran) => ran,
                    Err(reason) => (Err(SessionError::Ended(reason.clone())), Some(reason)),
                };
                done.end(&outcome);
                if let Some(reason) = &end {
                    self.state.ended.send_replace(Some(reason.clone()));
                }
                // The receiver may be gone, which is fine.
                let _ = answer.send(outcome);
                end.map_or(Ok(()), Err)
            }
            Command::Rewind { cells, done, answer } => {
                let done = Begun::new(done);
                let (rewound, end) = told_apart(self.rewind(sandbox, cells).await);
                done.end(&rewound);
                let _ = answer.send(rewound);
                end
            }
            Command::List { answer } => {
                let (listed, end) = told_apart(files::list(sandbox).await);
                let _ = answer.send(listed);
                end
            }
            Command::Read { path, offset, length, answer } => {
                let read = files::read(sandbox, Read { path, offset, length }).await;
                let (read, end) = told_apart(read);
                let _ = answer.send(read);
                end
            }
        }
    }

    /// Runs a cell. The outer error is a session that is gone without an outcome; with one, the reason comes beside it.
    async fn cell(
        &mut self,
        sandbox: &mut Sandbox<Armed>,
        request: &CellRequest,
        gone: &CancellationToken,
        queue: Duration,
        was_frozen: bool,
    ) -> Result<(Result<CellOutcome, SessionError>, Option<EndReason>), EndReason> {
        // What only brings files is no cell.
        let number = self.cells + u32::from(request.run != CellRun::Files);
        let disks = disks(&sandbox.spec);
        let cell = Cell {
            number,
            run: request.run.clone(),
            disks: disks.clone(),
            deadline: request.timeout,
            output: request.output,
            shown: request.shown,
            files: request.files.clone(),
            appended: request.appended.clone(),
        };
        let tar = request.workspace.tar();
        let mut message = Vec::with_capacity(tar.len() + request.input.len() + 4096);
        if let Err(error) = wire::push_message(&mut message, Kind::Cell, &cell) {
            return Ok((Err(SessionError::Command(error.to_string())), None));
        }
        wire::push_bytes(&mut message, Kind::Tar, tar);
        wire::push_bytes(&mut message, Kind::Stdin, &request.input);
        message.extend_from_slice(&wire::header(Kind::Go, 0));
        let sent = Instant::now();
        let mut output = CellOutput::new(request);
        let signals = Some(Signals { gone, interrupt: &self.state.interrupt });
        let take = |(kind, payload): (Kind, Vec<u8>), timeout: &mut Duration| match kind {
            Kind::CellEnded => Ok(Some(Ok(parse::<CellEnded>(kind, &payload)?))),
            Kind::Failed => Ok(Some(Err(parse::<Failed>(kind, &payload)?))),
            _ => {
                output.take(kind, &payload).map_err(|error| error.to_string())?;
                if kind == Kind::Started {
                    *timeout = request.timeout + REPORT_GRACE;
                }
                Ok(None)
            }
        };
        let ended = match exchange(sandbox, message, signals, START_TIMEOUT, take).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(Failed { cause, message })) => {
                let message = said(&message);
                let error = match cause {
                    FailedCause::WorkspaceFull | FailedCause::Workspace => {
                        SessionError::Files(message)
                    }
                    FailedCause::Command | FailedCause::Packages | FailedCause::Protocol => {
                        SessionError::Command(message)
                    }
                };
                return Ok((Err(error), None));
            }
            Err(broken) => return Err(self.lost(sandbox, &broken, output.output.started).await),
        };
        self.cells = number;
        let total = sent.elapsed();
        let memory = ended.memory.unwrap_or(0).min(self.memory_limit);
        self.state.memory.store(memory, Ordering::Relaxed);
        let times = CellTimes {
            queue,
            was_frozen,
            unpack: ended.exit.unpack,
            begin: ended.exit.spawn,
            total,
        };
        let CellOutput { output, shown, background, .. } = output;
        let outcome = Outcome::from_exit(ended.exit, output, &disks);
        let end =
            (!ended.is_alive).then(|| EndReason::ByProgram(fatal(&outcome, ended.end).to_owned()));
        let outcome = CellOutcome {
            cell: number,
            outcome,
            end: ended.end,
            shown,
            shown_dropped: ended.shown_dropped,
            undone: ended.undone,
            no_checkpoint: ended.no_checkpoint,
            checkpoints: ended.checkpoints,
            background,
            background_dropped: ended.background_dropped,
            is_alive: ended.is_alive,
            times,
        };
        Ok((Ok(outcome), end))
    }

    async fn rewind(
        &self,
        sandbox: &mut Sandbox<Armed>,
        cells: u32,
    ) -> Result<Result<Rewound, SessionError>, EndReason> {
        let message = message(Kind::Rewind, &Rewind { cells });
        let rewound =
            exchange(sandbox, message, None, SHORT_TIMEOUT, |(kind, payload), _| match kind {
                Kind::Rewound => parse::<Rewound>(kind, &payload).map(Some),
                other => Err(unexpected(other)),
            });
        match rewound.await {
            Ok(rewound) if rewound.is_alive => Ok(Ok(rewound)),
            Ok(_) => Err(EndReason::ByProgram("its checkpoints were gone".to_owned())),
            Err(broken) => Err(EndReason::Lost(told(&broken))),
        }
    }

    /// Why a session is gone whose stream is.
    async fn lost(
        &self,
        sandbox: &mut Sandbox<Armed>,
        broken: &Broken,
        has_started: bool,
    ) -> EndReason {
        use crate::engine::SandboxState;
        if !matches!(broken, Broken::Closed) || !has_started {
            return EndReason::Lost(told(broken));
        }
        match sandbox.settled_state().await {
            // The runner has ended, and with it the sandbox. Either the program killed it, or the kernel did because
            // memory ran out.
            Ok(SandboxState::Running | SandboxState::Ended) => EndReason::ByProgram(
                "everything in its sandbox was killed, by the program or for want of memory"
                    .to_owned(),
            ),
            Ok(state) => EndReason::Lost(format!("the sandbox is {state}")),
            Err(error) => EndReason::Lost(error.to_string()),
        }
    }
}

/// What a cell did with which its session has ended.
fn fatal(outcome: &Outcome, end: Option<CellEnd>) -> &'static str {
    match outcome.status {
        _ if outcome.lacked_memory() => "a cell needed more memory than it can have",
        Status::Timeout => "a cell ran longer than its timeout and had to be killed",
        Status::OutputLimit => "a cell printed more than it may and had to be killed",
        Status::Killed => "a cell was cancelled and had to be killed",
        _ if end.is_some() => "a cell ended its interpreter",
        _ => "what a command had started could not be ended",
    }
}
