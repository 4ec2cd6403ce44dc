//! An exchange with a runner: a message is sent, frames come back, and the last one ends it.
//!
//! A run is one exchange. A session has one to open it, and one for each call.

use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{self, Failed, Kind, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::{Call, Engine, EngineError, SandboxName, SandboxState, bounded};
use crate::sandbox::connection::ConnectionError;
use crate::sandbox::{Armed, Sandbox};

/// Time until a sandbox whose runner has said nothing is checked. A program or a cell starts milliseconds after it was sent; if it
/// takes this long, the sandbox may be frozen.
const FREEZE_CHECK_AFTER: Duration = Duration::from_secs(1);

/// Time that a cancelled cell has to end: its processes are killed.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

/// Why an exchange did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The stream has ended.
    #[error("its runner has ended")]
    Closed,
    /// The engine did not thaw the sandbox.
    #[error("it could not be thawed: {0}")]
    NotThawed(#[source] EngineError),
    /// The runner has broken the protocol.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    /// The last frame did not come in time.
    #[error("its runner did not answer in time")]
    Late,
}

/// The meaning of a frame for its exchange.
pub(crate) enum Step<T> {
    /// Others follow.
    More,
    /// The program has started. From now on it may take this long.
    Started(Duration),
    /// It was the last one.
    Last(T),
}

impl<T> Step<T> {
    /// The meaning of a frame that is not the last one of a program with this time from its start to its report.
    pub(crate) fn after(kind: Kind, timeout: Duration) -> Self {
        if kind == Kind::Started { Self::Started(timeout) } else { Self::More }
    }
}

/// The last frame of a program or a cell, or of a session that opens.
pub(crate) enum RunnerReport<T> {
    /// It was done.
    Done(T),
    /// It could not be begun.
    Failed(Failed),
}

impl<T: DeserializeOwned> RunnerReport<T> {
    /// Reads the report in a frame, if it is one. A report of success has the kind `done`.
    pub(crate) fn read(done: Kind, kind: Kind, payload: &[u8]) -> Result<Option<Self>, WireError> {
        Ok(match kind {
            Kind::Failed => Some(Self::Failed(wire::parse_message(kind, payload)?)),
            _ if kind == done => Some(Self::Done(wire::parse_message(kind, payload)?)),
            _ => None,
        })
    }
}

/// A message of one frame.
pub(crate) fn message<T: Serialize>(kind: Kind, body: &T) -> Result<Vec<u8>, WireError> {
    let mut message = Vec::new();
    wire::push_message(&mut message, kind, body)?;
    Ok(message)
}

/// The message that starts a program or a cell: its description, its files and its input.
pub(crate) fn start_message<T: Serialize>(
    kind: Kind,
    body: &T,
    tar: &[u8],
    input: &[u8],
) -> Result<Vec<u8>, WireError> {
    let mut message = Vec::with_capacity(tar.len() + input.len() + 4096);
    wire::push_message(&mut message, kind, body)?;
    wire::push_bytes(&mut message, Kind::Tar, tar);
    wire::push_bytes(&mut message, Kind::Stdin, input);
    message.extend_from_slice(&wire::header(Kind::Go, 0));
    Ok(message)
}

/// Signals of a caller to the cell that runs.
pub(crate) struct Signals<'a> {
    /// The caller no longer waits for the answer.
    pub(crate) gone: &'a CancellationToken,
    /// Interrupts the cell.
    pub(crate) interrupt: &'a Notify,
    /// The same, from its own caller.
    pub(crate) also: Option<&'a Notify>,
}

/// The place of an exchange in the life of a sandbox.
pub(crate) enum Place<'a> {
    /// The opening of a session.
    First,
    /// A run. Its program can ask for packages.
    Program(&'a dyn Aside),
    /// In an open session, whose runner reports in between that it rests, and passes on the messages of the agent.
    InSession(&'a dyn Aside, Option<Signals<'a>>),
}

/// Messages that are no part of an exchange, and go on during it.
#[async_trait::async_trait]
pub(crate) trait Aside: Send + Sync {
    /// Waits until there is something to send.
    async fn outgoing(&self) -> Vec<u8>;

    /// Takes a frame. Returns whether it was for this, and not for the exchange.
    ///
    /// # Errors
    ///
    /// When the runner has broken the protocol.
    fn take(&self, kind: Kind, payload: &[u8]) -> Result<bool, WireError>;
}

/// Sends a message and reads frames at the same time: a runner that reports a failure half-way stops reading, and one whose frames
/// are not read can't go on. `take` gets each frame. A sandbox that was frozen from outside is thawed. When the future is dropped,
/// the runner may have the message or a part of it.
pub(crate) async fn exchange<T>(
    sandbox: &mut Sandbox<Armed>,
    message: Vec<u8>,
    timeout: Duration,
    place: Place<'_>,
    mut take: impl FnMut(Kind, &[u8]) -> Result<Step<T>, WireError>,
) -> Result<T, ExchangeError> {
    let is_in_session = matches!(place, Place::InSession(..));
    let (aside, signals) = match place {
        Place::First => (None, None),
        Place::Program(aside) => (Some(aside), None),
        Place::InSession(aside, signals) => (Some(aside), signals),
    };
    let engine = Arc::clone(&sandbox.engine);
    let name = sandbox.lease.name().clone();
    let (mut sender, mut receiver) = sandbox.connection.split();
    sender.push(message);
    let mut thawed = std::pin::pin!(sandbox.state.thawed());
    let mut is_thawing = true;
    let mut freeze_check = std::pin::pin!(async {
        tokio::time::sleep(FREEZE_CHECK_AFTER).await;
        thaw_if_frozen(&*engine, &name).await;
    });
    // A runner that has answered is not frozen.
    let (mut has_answered, mut was_checked) = (false, false);
    let (mut has_started, mut is_cancelled) = (false, false);
    let mut outgoing = std::pin::pin!(outgoing(aside));
    let mut deadline = std::pin::pin!(tokio::time::sleep(timeout));
    let error = loop {
        tokio::select! {
            frame = receiver.next() => {
                let (kind, payload) = match frame {
                    // It belongs to the exchange before this one.
                    Some(Ok((Kind::Resting, _))) if is_in_session => continue,
                    Some(Ok(frame)) => frame,
                    // A broken stream counts as closed; the caller checks whether the sandbox is still there.
                    Some(Err(ConnectionError::Engine(error))) => {
                        tracing::debug!(%error, "the stream of a sandbox broke");
                        break ExchangeError::Closed;
                    }
                    None => break ExchangeError::Closed,
                    Some(Err(error)) => return Err(error.into()),
                };
                has_answered = true;
                if let Some(aside) = aside
                    && aside.take(kind, &payload).map_err(ConnectionError::from)?
                {
                    continue;
                }
                match take(kind, &payload).map_err(ConnectionError::from)? {
                    Step::Last(last) => return Ok(last),
                    Step::Started(timeout) if !has_started => {
                        has_started = true;
                        if !is_cancelled {
                            deadline.as_mut().reset(Instant::now() + timeout);
                        }
                    }
                    Step::Started(_) | Step::More => {}
                }
            }
            () = sender.send(), if !sender.is_empty() => {}
            answer = &mut thawed, if is_thawing => {
                is_thawing = false;
                if let Err(error) = answer && !has_answered {
                    return Err(ExchangeError::NotThawed(error));
                }
            }
            // A sandbox that is being thawed is not checked.
            () = &mut freeze_check, if !has_answered && !was_checked && !is_thawing => {
                was_checked = true;
            }
            () = gone(&signals), if !is_cancelled => {
                is_cancelled = true;
                sender.push(wire::header(Kind::Cancel, 0).to_vec());
                deadline.as_mut().reset(Instant::now() + CANCEL_GRACE);
            }
            // A second interruption that comes before the first was sent adds nothing to it.
            () = interrupted(&signals), if sender.is_empty() => {
                sender.push(wire::header(Kind::Interrupt, 0).to_vec());
            }
            message = &mut outgoing, if sender.is_empty() => {
                sender.push(message);
                outgoing.set(self::outgoing(aside));
            }
            () = &mut deadline => break ExchangeError::Late,
        }
    };
    // The engine is asked about the sandbox next, and gets one call after the other.
    if is_thawing && !has_started {
        thawed.await.map_err(ExchangeError::NotThawed)?;
    }
    Err(error)
}

async fn gone(signals: &Option<Signals<'_>>) {
    match signals {
        Some(signals) => signals.gone.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn outgoing(aside: Option<&dyn Aside>) -> Vec<u8> {
    match aside {
        Some(aside) => aside.outgoing().await,
        None => std::future::pending().await,
    }
}

async fn interrupted(signals: &Option<Signals<'_>>) {
    match signals {
        Some(Signals { interrupt, also: Some(also), .. }) => tokio::select! {
            () = interrupt.notified() => {}
            () = also.notified() => {}
        },
        Some(signals) => signals.interrupt.notified().await,
        None => std::future::pending().await,
    }
}

/// Thaws a sandbox that was frozen from outside while it was waiting.
async fn thaw_if_frozen(engine: &dyn Engine, name: &SandboxName) {
    let thawed = match bounded(Call::State, engine.state(name)).await {
        Ok(SandboxState::Paused) => bounded(Call::Resume, engine.resume(name)).await,
        Ok(_) => return,
        Err(error) => Err(error),
    };
    match thawed {
        Ok(()) => {
            tracing::warn!(sandbox = %name, "the sandbox had been paused from outside; it was thawed")
        }
        Err(error) => {
            tracing::warn!(sandbox = %name, %error, "the state of a slow sandbox could not be checked")
        }
    }
}
