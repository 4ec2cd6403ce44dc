//! A session between two commands: its sandbox is frozen and thawed, and messages of its agent go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isolator_runner::wire::{Kind, WireError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agent::Hub;
use super::task::{FREEZE_AFTER, Held, Next, Task};
use super::usage::OtherMessages;
use super::{Asked, Command, EndReason, LossError, Session, SessionError};
use crate::pool::admission::Admitted;
use crate::run::exchange::{Aside as _, ExchangeError};
use crate::sandbox::connection::{ConnectionError, Frame};
use crate::sandbox::{Armed, Paused, PausedOrKept, Sandbox};

/// Longest time that a session stays thawed if its runner does not say that it rests.
const MAX_UNREST: Duration = Duration::from_secs(20);

/// Time until freezing is tried again after it has failed, as it does on a machine that is very busy, and number of tries.
const FREEZE_AGAIN_AFTER: Duration = Duration::from_secs(5);
const FREEZE_TRIES: u32 = 12;

/// Longest time that the runner may take to read messages for the agent.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

impl Session {
    /// Freezes the sandbox when its turn has come, whatever its processes do, and ends the calls to its agent. Returns whether it is
    /// frozen; on a machine that is very busy it may not be yet. The next call thaws it.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn freeze(&self) -> Result<bool, SessionError> {
        self.ask(|answer| Command::Freeze { answer }).await
    }
}

impl Task {
    /// The next thing to do. Meanwhile messages of the agent go on.
    pub(super) async fn next(
        &mut self,
        held: &mut Held,
        commands: &mut mpsc::Receiver<Asked>,
    ) -> Result<Next, EndReason> {
        let agent = Arc::clone(&self.agent);
        loop {
            let is_working = agent.is_working();
            if let Held::Awake(_, slot) = held
                && slot.is_resting() == is_working
            {
                if is_working {
                    slot.work();
                } else {
                    slot.rest();
                    self.awake_until = Instant::now() + FREEZE_AFTER;
                }
            }
            let next = self.next_or_other_work(held, commands, &agent, is_working).await?;
            if let Some(next) = next {
                return Ok(next);
            }
        }
    }

    /// The next thing to do; `None` when the agent has work and had none before, or the reverse.
    async fn next_or_other_work(
        &mut self,
        held: &mut Held,
        commands: &mut mpsc::Receiver<Asked>,
        agent: &Hub,
        is_working: bool,
    ) -> Result<Option<Next>, EndReason> {
        let (state, installs) = (Arc::clone(&self.state), Arc::clone(&self.installs));
        let others = OtherMessages { agent, usage: &state.usage, installs: &installs };
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
        let (mut sender, mut receiver) = connection.split();
        let since = Instant::now();
        let mut send_until = since + SEND_TIMEOUT;
        loop {
            let freeze_at = if self.failed_freezes > 0 {
                Some(since + FREEZE_AGAIN_AFTER)
            } else if !self.is_resting {
                Some(since + MAX_UNREST)
            } else if is_wanted {
                Some(since)
            } else if agent.has_processes() {
                // They go on until another client wants the slot.
                None
            } else {
                Some(self.awake_until)
            };
            let freeze = async {
                match freeze_at {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            // Calls that follow each other without a pause would keep the slot from others. A slot that can't be given back is used.
            let takes_commands = !is_wanted || self.failed_freezes > 0;
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return Err(EndReason::ServerStops),
                () = &mut wanted, if !is_wanted => is_wanted = true,
                asked = commands.recv(), if takes_commands => {
                    return asked.map(|asked| Some(Next::Command(asked))).ok_or(EndReason::Closed);
                }
                () = agent.works(true), if !is_awake => return Ok(Some(Next::Thaw)),
                () = agent.works(!is_working), if is_awake && takes_commands => return Ok(None),
                frame = receiver.next() => self.is_resting |= is_rest(&others, frame)?,
                () = sender.send(), if !sender.is_empty() => {}
                // What is sent to a sandbox that is about to be frozen would get no answer in time.
                message = others.outgoing(), if is_awake && takes_commands && sender.is_empty() => {
                    sender.push(message);
                    send_until = Instant::now() + SEND_TIMEOUT;
                }
                () = tokio::time::sleep_until(send_until), if is_awake && !sender.is_empty() => {
                    return Err(EndReason::lost(ExchangeError::Late));
                }
                () = state.usage.due(), if !is_awake => {
                    state.usage.add_frozen(state.memory.load(Ordering::Relaxed));
                }
                () = freeze, if is_awake && !is_working => return Ok(Some(Next::Freeze)),
            }
        }
    }

    /// Thaws the sandbox for calls to its agent, if the session gets a slot.
    pub(super) async fn thaw(&mut self, sandbox: Sandbox<Paused>) -> Result<Held, EndReason> {
        let agent = Arc::clone(&self.agent);
        let admitted = tokio::select! {
            biased;
            () = self.abort.cancelled() => return Err(EndReason::ServerStops),
            () = agent.works(false) => return Ok(Held::Frozen(sandbox)),
            admitted = self.admission.enter(&self.client) => admitted,
        };
        let slot = match admitted {
            Ok(slot) => slot,
            Err(error) => {
                agent.refuse(&error);
                return Ok(Held::Frozen(sandbox));
            }
        };
        let mut sandbox = sandbox.begin_to_resume(&self.shared.makers);
        let thawed = sandbox.state.thawed().await;
        thawed.map_err(|error| EndReason::lost(ExchangeError::NotThawed(error)))?;
        self.state.is_frozen.store(false, Ordering::Relaxed);
        self.failed_freezes = 0;
        agent.thawed();
        Ok(Held::Awake(sandbox, slot))
    }

    /// Freezes the sandbox, and gives its slot back.
    pub(super) async fn freeze(
        &mut self,
        sandbox: Sandbox<Armed>,
        slot: Admitted,
    ) -> Result<Held, EndReason> {
        match sandbox.pause_or_keep().await {
            Ok(PausedOrKept::Paused(mut frozen)) => {
                drop(slot);
                self.state.is_frozen.store(true, Ordering::Relaxed);
                self.measure(&mut frozen).await;
                Ok(Held::Frozen(frozen))
            }
            Ok(PausedOrKept::Kept(sandbox)) => {
                self.failed_freezes += 1;
                if self.failed_freezes < FREEZE_TRIES {
                    return Ok(Held::Awake(sandbox, slot));
                }
                Err(EndReason::lost(LossError::NotFrozen))
            }
            Err(error) => Err(EndReason::lost(error)),
        }
    }

    /// Freezes the sandbox whatever its processes do, and ends the calls to its agent. Answers whether it is frozen.
    pub(super) async fn freeze_now(
        &mut self,
        held: Held,
        gone: &CancellationToken,
        answer: oneshot::Sender<Result<bool, SessionError>>,
    ) -> Result<Held, EndReason> {
        self.agent.pause();
        let held = match held {
            Held::Awake(mut sandbox, slot) => {
                tokio::select! {
                    biased;
                    () = gone.cancelled() => return Ok(Held::Awake(sandbox, slot)),
                    rests = self.await_rest(&mut sandbox) => rests?,
                }
                self.freeze(sandbox, slot).await?
            }
            frozen @ Held::Frozen(_) => frozen,
        };
        // The caller may have gone away.
        let _ = answer.send(Ok(matches!(held, Held::Frozen(_))));
        Ok(held)
    }

    /// Waits until the runner rests, and no longer than it may take. Timeouts of what it does would pass in a frozen sandbox.
    async fn await_rest(&mut self, sandbox: &mut Sandbox<Armed>) -> Result<(), EndReason> {
        let (agent, state) = (Arc::clone(&self.agent), Arc::clone(&self.state));
        let installs = Arc::clone(&self.installs);
        let others = OtherMessages { agent: &agent, usage: &state.usage, installs: &installs };
        let (mut sender, mut receiver) = sandbox.connection.split();
        let mut late = std::pin::pin!(tokio::time::sleep(MAX_UNREST));
        while !self.is_resting {
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return Err(EndReason::ServerStops),
                () = &mut late => break,
                frame = receiver.next() => self.is_resting |= is_rest(&others, frame)?,
                () = sender.send(), if !sender.is_empty() => {}
            }
        }
        Ok(())
    }

    /// Measures the memory of a sandbox that was just frozen: threads that go on after the answer of a cell can have taken more.
    async fn measure(&self, frozen: &mut Sandbox<Paused>) {
        match frozen.used_memory().await {
            Ok(None) => {}
            Ok(Some(memory)) => {
                self.state.memory.store(memory.min(self.memory_limit), Ordering::Relaxed);
                self.state.measured.notify_one();
            }
            // The memory of its last cell is still a good guess.
            Err(error) => tracing::debug!(%error, "the memory of a session is not known"),
        }
    }
}

/// Takes a frame that comes between two commands. Returns whether the runner says that it rests.
fn is_rest(
    others: &OtherMessages<'_>,
    frame: Option<Result<Frame, ConnectionError>>,
) -> Result<bool, EndReason> {
    let (kind, payload) =
        frame.ok_or_else(|| EndReason::lost(LossError::BetweenCalls))?.map_err(EndReason::lost)?;
    if kind == Kind::Resting {
        return Ok(true);
    }
    match others.take(kind, &payload) {
        Ok(true) => Ok(false),
        Ok(false) => Err(EndReason::lost(ConnectionError::from(WireError::Unexpected(kind)))),
        Err(error) => Err(EndReason::lost(ConnectionError::from(error))),
    }
}
