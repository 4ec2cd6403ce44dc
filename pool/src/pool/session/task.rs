//! The task that holds a session's sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use isolator_runner::wire::{
    self, Bounds, Cell, CellEnded, Kind, Opened, Read, Rewind, Rewound, WireError,
};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agent::Hub;
use super::coming::ComingKernel;
use super::done::Begun;
use super::output::CellOutput;
use super::usage::OtherMessages;
use super::words::from_failed;
use super::{
    Asked, CellOutcome, CellRequest, CellRun, CellTimes, Command, EndReason, LossError, ProgramEnd,
    SessionError, State,
};
use super::{completing, contexts, files};
use crate::engine::SandboxState;
use crate::lock::lock;
use crate::pool::Shared;
use crate::pool::admission::{Admission, Admitted, Client};
use crate::run::disks;
use crate::run::exchange::{
    ExchangeError, Place, RunnerReport, Signals, Step, exchange, message, start_message,
};
use crate::run::installs::Installs;
use crate::run::outcome::Status;
use crate::sandbox::{Armed, Paused, Sandbox};

/// Time that a session stays thawed after a cell if no other client wants its slot: the next cell of a conversation often follows at
/// once, and thawing takes longer than most cells on some engines.
pub(super) const FREEZE_AFTER: Duration = Duration::from_secs(1);

/// Longest time from the first byte sent to the start of a cell: its files, a checkpoint, a kernel that does not answer.
const START_TIMEOUT: Duration = Duration::from_secs(35);

/// Time that the server waits for the report after a cell's own time: it is interrupted, killed, undone and reported.
const REPORT_GRACE: Duration = Duration::from_secs(15);

/// Longest time for rewinding.
const REWIND_TIMEOUT: Duration = Duration::from_secs(20);

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

/// The next thing that a task does.
pub(super) enum Next {
    /// A command of a caller.
    Command(Asked),
    /// Freeze the sandbox.
    Freeze,
    /// Thaw it for calls to its agent.
    Thaw,
}

pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Admission,
    /// The owner of the session.
    pub(super) client: Client,
    pub(super) abort: CancellationToken,
    pub(super) state: Arc<State>,
    pub(super) turn: Arc<Semaphore>,
    /// Calls to its agent.
    pub(super) agent: Arc<Hub>,
    /// Requests of its programs for packages.
    pub(super) installs: Arc<Installs>,
    /// Number of cells so far.
    pub(super) cells: u32,
    /// Until when the sandbox stays thawed if no other client wants its slot.
    pub(super) awake_until: Instant,
    /// Whether the runner has said that the sandbox can be frozen.
    pub(super) is_resting: bool,
    /// How often freezing the sandbox has failed since the last call.
    pub(super) failed_freezes: u32,
    pub(super) memory_limit: u64,
    /// The kernel, if it is still being forked.
    pub(super) kernel: Option<ComingKernel>,
}

impl Drop for Task {
    /// Ends the turns and the channels of calls that wait, after which they look for the reason. There is one even if the task has
    /// panicked.
    fn drop(&mut self) {
        *lock(&self.state.running_since) = None;
        self.state.ended.send_if_modified(|ended| {
            let is_unknown = ended.is_none();
            ended.get_or_insert_with(|| EndReason::lost(LossError::Panic));
            is_unknown
        });
        self.turn.close();
        let reason = self.state.ended.borrow().clone();
        self.agent.close(reason.unwrap_or(EndReason::Closed));
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
        if let Err(reason) = self.await_kernel(&mut held).await {
            return reason;
        }
        loop {
            let next = match self.next(&mut held, commands).await {
                Ok(next) => next,
                Err(reason) => return reason,
            };
            let done = match (next, held) {
                (Next::Command(asked), held) => self.run_asked(held, asked).await,
                (Next::Freeze, Held::Awake(sandbox, slot)) => self.freeze(sandbox, slot).await,
                (Next::Thaw, Held::Frozen(sandbox)) => self.thaw(sandbox).await,
                (Next::Freeze | Next::Thaw, held) => Ok(held),
            };
            match done {
                Ok(next) => held = next,
                Err(reason) => return reason,
            }
        }
    }

    /// Waits until the session has its kernel.
    async fn await_kernel(&mut self, held: &mut Held) -> Result<(), EndReason> {
        let (Some(kernel), Held::Awake(sandbox, _)) = (self.kernel.take(), held) else {
            return Ok(());
        };
        let (abort, activity) = (self.abort.clone(), Arc::clone(&self.shared.activity));
        let others = self.other_messages();
        let arrives = activity.during(kernel.arrive(sandbox, &others));
        let memory = tokio::select! {
            biased;
            () = abort.cancelled() => return Err(EndReason::ServerStops),
            memory = arrives => memory?,
        };
        if let Some(memory) = memory {
            self.state.memory.store(memory.min(self.memory_limit), Ordering::Relaxed);
        }
        self.awake_until = Instant::now() + FREEZE_AFTER;
        Ok(())
    }

    /// Runs a command.
    async fn run_asked(&mut self, held: Held, asked: Asked) -> Result<Held, EndReason> {
        let Asked { command, gone, turn: _turn } = asked;
        // The caller has gone away.
        if gone.is_cancelled() {
            return Ok(held);
        }
        if let Command::Freeze { answer } = command {
            return self.freeze_now(held, &gone, answer).await;
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
                    () = gone.cancelled() => return Ok(Held::Frozen(sandbox)),
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
        // Other calls seldom follow the reading and listing of files.
        let is_followed = !matches!(command, Command::List { .. } | Command::Read { .. });
        if matches!(command, Command::Cell { .. }) {
            self.shared.counts.queue.add(queue);
        }
        if was_frozen {
            self.state.is_frozen.store(false, Ordering::Relaxed);
            self.agent.thawed();
        }
        // The runner says it again after this command.
        (self.is_resting, self.failed_freezes) = (false, 0);
        let activity = Arc::clone(&self.shared.activity);
        let abort = self.abort.clone();
        let run = async { self.run(&mut sandbox, command, &gone, queue, was_frozen).await };
        let end = tokio::select! {
            biased;
            () = abort.cancelled() => Some(EndReason::ServerStops),
            end = activity.during(run) => end,
        };
        if let Some(reason) = end {
            return Err(reason);
        }
        if is_followed {
            self.awake_until = Instant::now() + FREEZE_AFTER;
        }
        Ok(Held::resting(sandbox, slot))
    }

    /// Runs a command. Returns the end of the session, if the command was its last one.
    async fn run(
        &mut self,
        sandbox: &mut Sandbox<Armed>,
        command: Command,
        gone: &CancellationToken,
        queue: Duration,
        was_frozen: bool,
    ) -> Option<EndReason> {
        match command {
            Command::Cell { request, done, answer } => {
                let done = Begun::new(done);
                // An interruption that came too late for the last one is not for this one.
                let _ = self.state.interrupt.notified().now_or_never();
                *lock(&self.state.running_since) = Some(Instant::now());
                let ran = self.cell(sandbox, &request, gone, queue, was_frozen).await;
                *lock(&self.state.running_since) = None;
                done.end(&ran);
                let fatal = ran.as_ref().ok().filter(|cell| !cell.is_alive).map(fatal);
                let end = fatal.map(EndReason::ByProgram).or_else(|| end_of(&ran));
                if let Some(reason) = &end {
                    self.state.ended.send_replace(Some(reason.clone()));
                }
                send(answer, ran);
                end
            }
            Command::Rewind { cells, done, answer } => {
                let done = Begun::new(done);
                let rewound = rewind(sandbox, &self.other_messages(), cells).await;
                done.end(&rewound);
                send(answer, rewound)
            }
            // It is served before the sandbox would be thawed.
            Command::Freeze { .. } => None,
            Command::List { answer } => {
                send(answer, files::list(sandbox, &self.other_messages()).await)
            }
            Command::Complete { text, answer } => {
                send(answer, completing::complete(sandbox, &self.other_messages(), text).await)
            }
            Command::OpenContext { open, answer } => {
                let opened = contexts::open(sandbox, &self.other_messages(), &open).await;
                if let Ok(Opened { memory: Some(memory), .. }) = &opened {
                    self.state.memory.store(*memory.min(&self.memory_limit), Ordering::Relaxed);
                }
                if answer.is_closed() {
                    // Its caller has gone away, and nothing else knows of it. A failure shows with the next command.
                    let other_messages = self.other_messages();
                    let _ = contexts::close(sandbox, &other_messages, open.context).await;
                }
                send(answer, opened)
            }
            Command::CloseContext { context, answer } => {
                send(answer, contexts::close(sandbox, &self.other_messages(), context).await)
            }
            Command::Read { path, offset, length, answer } => {
                let read = Read { path, offset, length };
                send(answer, files::read(sandbox, &self.other_messages(), read).await)
            }
        }
    }

    /// Messages that are no part of a command.
    pub(super) fn other_messages(&self) -> OtherMessages<'_> {
        OtherMessages { agent: &self.agent, usage: &self.state.usage, installs: &self.installs }
    }

    async fn cell(
        &mut self,
        sandbox: &mut Sandbox<Armed>,
        request: &CellRequest,
        gone: &CancellationToken,
        queue: Duration,
        was_frozen: bool,
    ) -> Result<CellOutcome, SessionError> {
        // A call that only brings files is no cell.
        let number = self.cells + u32::from(request.run != CellRun::Files);
        let disks = disks(&sandbox.spec);
        let message = encode(request, number, &disks)?;
        let sent = Instant::now();
        let mut output = CellOutput::new(request);
        let take = |kind, payload: &[u8]| {
            if let Some(report) = RunnerReport::<CellEnded>::read(Kind::CellEnded, kind, payload)? {
                return Ok(Step::Last(report));
            }
            output.take(kind, payload)?;
            Ok(Step::after(kind, request.timeout + REPORT_GRACE))
        };
        let also = request.interrupt.as_deref();
        let signals = Signals { gone, interrupt: &self.state.interrupt, also };
        let others = self.other_messages();
        let place = Place::InSession(&others, Some(signals));
        let ended = match exchange(sandbox, message, START_TIMEOUT, place, take).await {
            Ok(RunnerReport::Done(ended)) => ended,
            Ok(RunnerReport::Failed(failed)) => return Err(from_failed(&failed)),
            Err(ExchangeError::Closed) if output.output.has_started() => {
                return Err(SessionError::Ended(end_of_sandbox(sandbox).await));
            }
            Err(error) => return Err(error.into()),
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
        let CellOutput { output, mut shown, background, .. } = output;
        // Those that were passed on have left their places empty.
        shown.retain(|thing| !thing.forms.is_empty());
        Ok(CellOutcome {
            cell: number,
            outcome: output.with_report(ended.exit, &disks),
            end: ended.end,
            shown,
            shown_dropped: ended.shown_dropped,
            undone: ended.undone,
            undone_files: ended.undone_files,
            no_checkpoint: ended.no_checkpoint,
            checkpoints: ended.checkpoints,
            background,
            background_dropped: ended.background_dropped,
            is_alive: ended.is_alive,
            is_kernel_gone: ended.is_kernel_gone,
            times,
        })
    }
}

/// Answers a call, whose caller may have gone away. Returns the end of the session, if that is the answer.
fn send<T>(
    to: oneshot::Sender<Result<T, SessionError>>,
    answer: Result<T, SessionError>,
) -> Option<EndReason> {
    let end = end_of(&answer);
    let _ = to.send(answer);
    end
}

/// The end of the session, if that is the answer.
fn end_of<T>(answer: &Result<T, SessionError>) -> Option<EndReason> {
    match answer {
        Err(SessionError::Ended(reason)) => Some(reason.clone()),
        _ => None,
    }
}

fn encode(request: &CellRequest, number: u32, disks: &[String]) -> Result<Vec<u8>, WireError> {
    let cell = Cell {
        number,
        run: request.run.clone(),
        bounds: Bounds {
            deadline: request.timeout,
            output: request.output,
            disks: disks.to_vec(),
            files: request.files.clone(),
        },
        shown: request.shown,
        appended: request.appended.clone(),
        context: request.context,
        keeps_session: request.keeps_session,
    };
    start_message(Kind::Cell, &cell, request.workspace.tar(), &request.input)
}

async fn rewind(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
    cells: u32,
) -> Result<Rewound, SessionError> {
    let message = message(Kind::Rewind, &Rewind { cells })?;
    let take = |kind, payload: &[u8]| match kind {
        Kind::Rewound => Ok(Step::Last(wire::parse_message::<Rewound>(kind, payload)?)),
        other => Err(WireError::Unexpected(other)),
    };
    let rewound =
        exchange(sandbox, message, REWIND_TIMEOUT, Place::InSession(others, None), take).await?;
    if !rewound.is_alive {
        return Err(SessionError::Ended(EndReason::ByProgram(ProgramEnd::NoCheckpoints)));
    }
    Ok(rewound)
}

/// Why a sandbox has ended while a cell ran in it.
async fn end_of_sandbox(sandbox: &mut Sandbox<Armed>) -> EndReason {
    match sandbox.settled_state().await {
        // When the runner has ended, so has the sandbox: the program killed it, or the kernel did because memory ran out.
        Ok(SandboxState::Running | SandboxState::Ended) => {
            EndReason::ByProgram(ProgramEnd::AllKilled)
        }
        Ok(state) => EndReason::lost(LossError::State(state)),
        Err(error) => EndReason::lost(error),
    }
}

/// How a cell has ended its session.
fn fatal(cell: &CellOutcome) -> ProgramEnd {
    match cell.outcome.status {
        _ if cell.outcome.ran_out_of_memory() => ProgramEnd::OutOfMemory,
        Status::Timeout => ProgramEnd::Timeout,
        Status::OutputLimit => ProgramEnd::OutputLimit,
        Status::Killed => ProgramEnd::Cancelled,
        _ if cell.end.is_some() => ProgramEnd::InterpreterEnded,
        _ => ProgramEnd::ProcessesLeft,
    }
}
