//! The task that holds a session's sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use isolator_runner::wire::{
    self, Cell, CellEnded, Failed, FailedCause, Kind, Read, Rewind, Rewound,
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
use crate::pool::admission::Admission;
use crate::run::outcome::Outcome;
use crate::run::{disks, shortened};
use crate::sandbox::{Armed, Paused, Sandbox};

/// How long a session stays thawed after its last answer: the next cell of a conversation often follows at once, and thawing takes
/// longer than most cells on some engines.
const FREEZE_AFTER: Duration = Duration::from_secs(1);

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

/// The sandbox of a session.
pub(super) enum Held {
    Awake(Sandbox<Armed>),
    Frozen(Sandbox<Paused>),
}

pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Admission,
    pub(super) abort: CancellationToken,
    pub(super) state: Arc<State>,
    pub(super) turn: Arc<Semaphore>,
    /// Cells so far.
    pub(super) cells: u32,
    /// Whether the runner has said that the sandbox can be frozen.
    pub(super) is_resting: bool,
    /// How often freezing the sandbox has failed since the last call.
    pub(super) failed_freezes: u32,
    pub(super) memory_limit: u64,
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
        // Those who wait are told by the end of the channels and of their turns, and then look for the reason.
        *lock(&self.state.running_since) = None;
        self.state.ended.send_replace(Some(reason));
        self.turn.close();
        drop(commands);
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
        let is_awake = matches!(held, Held::Awake(_));
        let connection = match held {
            Held::Awake(sandbox) => &mut sandbox.connection,
            Held::Frozen(sandbox) => &mut sandbox.connection,
        };
        let (_, mut receiver) = connection.split();
        let since = Instant::now();
        loop {
            let freeze_after = if self.failed_freezes > 0 {
                FREEZE_AGAIN_AFTER
            } else if self.is_resting {
                FREEZE_AFTER
            } else {
                LONGEST_UNREST
            };
            tokio::select! {
                biased;
                asked = commands.recv() => return asked.map(Some).ok_or(EndReason::Closed),
                () = self.shared.stop.cancelled() => return Err(EndReason::ServerStops),
                frame = receiver.next() => match frame {
                    Some(Ok((Kind::Resting, _))) => self.is_resting = true,
                    Some(Ok((kind, _))) => return Err(EndReason::Lost(unexpected(kind))),
                    Some(Err(error)) => return Err(EndReason::Lost(error.to_string())),
                    None => {
                        let why = "the sandbox has ended between two calls";
                        return Err(EndReason::Lost(why.to_owned()));
                    }
                },
                () = tokio::time::sleep_until(since + freeze_after), if is_awake => return Ok(None),
            }
        }
    }

    async fn freeze_or_obey(
        &mut self,
        held: Held,
        asked: Option<Asked>,
    ) -> Result<Held, EndReason> {
        let is_frozen = matches!(held, Held::Frozen(_));
        let Some(Asked { command, turn: _turn }) = asked else {
            let Held::Awake(sandbox) = held else { return Ok(held) };
            return self.freeze(sandbox).await;
        };
        // Whoever does not wait anymore needs nothing.
        if !command.is_wanted() {
            return Ok(held);
        }
        // A cell has to wait for its turn, while the sandbox is left as it is.
        let arrived = Instant::now();
        let admitted = match &command {
            Command::Cell { client, gone, .. } => tokio::select! {
                biased;
                () = gone.cancelled() => return Ok(held),
                () = self.abort.cancelled() => return Err(EndReason::ServerStops),
                admitted = self.admission.enter(client) => Some(admitted),
            },
            _ => None,
        };
        let admitted = match (admitted.transpose(), command) {
            (Ok(admitted), command) => (admitted, command),
            (Err(error), Command::Cell { answer, .. }) => {
                // The receiver may be gone, which is fine.
                let _ = answer.send(Err(error.into()));
                return Ok(held);
            }
            (Err(_), _) => return Ok(held),
        };
        let (_admitted, command) = admitted;
        let queue = arrived.elapsed();
        if matches!(command, Command::Cell { .. }) {
            self.shared.counts.queue.add(queue);
        }
        let mut sandbox = match held {
            Held::Awake(sandbox) => sandbox,
            Held::Frozen(sandbox) => sandbox.begin_to_resume(&self.shared.makers),
        };
        self.state.is_frozen.store(false, Ordering::Relaxed);
        // The runner says it again after this command.
        (self.is_resting, self.failed_freezes) = (false, 0);
        let activity = Arc::clone(&self.shared.activity);
        let abort = self.abort.clone();
        let obeyed = async { self.obey(&mut sandbox, command, queue, is_frozen).await };
        tokio::select! {
            biased;
            () = abort.cancelled() => return Err(EndReason::ServerStops),
            obeyed = activity.during(obeyed) => obeyed?,
        }
        Ok(Held::Awake(sandbox))
    }

    async fn freeze(&mut self, sandbox: Sandbox<Armed>) -> Result<Held, EndReason> {
        match sandbox.pause_or_keep().await {
            Ok(Ok(mut frozen)) => {
                self.state.is_frozen.store(true, Ordering::Relaxed);
                self.measure(&mut frozen).await;
                Ok(Held::Frozen(frozen))
            }
            Ok(Err(sandbox)) => {
                self.failed_freezes += 1;
                if self.failed_freezes < FREEZE_TRIES {
                    return Ok(Held::Awake(sandbox));
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
                let message = shortened(&message);
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
        let end = (!ended.is_alive).then(|| {
            EndReason::ByProgram(
                "a cell ended its interpreter, or what it started could not be ended".to_owned(),
            )
        });
        let no_checkpoint = ended.no_checkpoint.map(|why| why.chars().take(200).collect());
        let outcome = CellOutcome {
            cell: number,
            outcome: Outcome::from_exit(ended.exit, output, &disks),
            end: ended.end,
            shown,
            shown_dropped: ended.shown_dropped,
            undone: ended.undone,
            no_checkpoint,
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
