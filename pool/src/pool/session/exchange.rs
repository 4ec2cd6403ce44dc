//! One exchange with the runner of a session: something is asked, frames come, and a last one ends it.

use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{self, Kind};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::run::{FREEZE_CHECK_AFTER, thaw_if_frozen};
use crate::sandbox::connection::{ConnectionError, Frame};
use crate::sandbox::{Armed, Sandbox};

/// How long a cell that nobody waits for may take to end: its processes are killed.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

/// Why an exchange did not come to its end.
#[derive(Debug)]
pub(super) enum Broken {
    /// The stream has ended.
    Closed,
    /// The engine did not thaw the sandbox.
    NotThawed(String),
    /// The runner has broken the protocol.
    Protocol(String),
    /// Its answer did not come in time.
    Late,
}

/// What may come in between.
pub(super) struct Signals<'a> {
    /// Nobody waits for the answer anymore.
    pub(super) gone: &'a CancellationToken,
    /// Interrupt what runs.
    pub(super) interrupt: &'a Notify,
}

/// Sends a message and takes frames until one is the last. `take` gets each frame, and returns something for the last one;
/// `timeout` is asked for the time that is left after each. A sandbox that somebody has frozen meanwhile is thawed. When the
/// future is dropped, the runner may have the message or a part of it.
pub(super) async fn exchange<T>(
    sandbox: &mut Sandbox<Armed>,
    mut message: Vec<u8>,
    signals: Option<Signals<'_>>,
    mut timeout: Duration,
    mut take: impl FnMut(Frame, &mut Duration) -> Result<Option<T>, String>,
) -> Result<T, Broken> {
    let engine = Arc::clone(&sandbox.engine);
    let name = sandbox.lease.name().clone();
    let mut freeze_check = std::pin::pin!(async {
        tokio::time::sleep(FREEZE_CHECK_AFTER).await;
        thaw_if_frozen(&*engine, &name).await;
    });
    let mut is_checked = false;
    let (sender, mut receiver) = sandbox.connection.split();
    let input = sender.into_inner();
    let mut thawed = std::pin::pin!(sandbox.state.thawed());
    let mut is_thawing = true;
    let mut at = 0;
    let mut is_cancelled = false;
    let mut until = Instant::now() + timeout;
    loop {
        let (gone, interrupt) = match &signals {
            Some(signals) => (Some(signals.gone), Some(signals.interrupt)),
            None => (None, None),
        };
        tokio::select! {
            frame = receiver.next() => {
                let frame = match frame {
                    // It belongs to what was asked before.
                    Some(Ok((Kind::Resting, _))) => continue,
                    Some(Ok(frame)) => frame,
                    None | Some(Err(ConnectionError::Engine(_))) => return Err(Broken::Closed),
                    Some(Err(error)) => return Err(Broken::Protocol(error.to_string())),
                };
                is_checked = true;
                let before = timeout;
                if let Some(last) = take(frame, &mut timeout).map_err(Broken::Protocol)? {
                    return Ok(last);
                }
                if timeout != before && !is_cancelled {
                    until = Instant::now() + timeout;
                }
            }
            // Nothing was written if another branch is first.
            written = input.write(&message[at..]), if at < message.len() => match written {
                Ok(0) | Err(_) => {
                    // A stream that broke while sending says why on the way back.
                    at = message.len();
                }
                Ok(count) => {
                    at += count;
                    if at == message.len() {
                        if input.flush().await.is_err() {
                            return Err(Broken::Closed);
                        }
                        (message, at) = (Vec::new(), 0);
                    }
                }
            },
            answer = &mut thawed, if is_thawing => {
                is_thawing = false;
                if let Err(error) = answer {
                    return Err(Broken::NotThawed(error.to_string()));
                }
            }
            // A runner that has answered is not frozen, and one that is being thawed is not checked.
            () = &mut freeze_check, if !is_checked && !is_thawing => is_checked = true,
            () = cancelled(gone), if !is_cancelled => {
                is_cancelled = true;
                message.extend_from_slice(&wire::header(Kind::Cancel, 0));
                until = Instant::now() + CANCEL_GRACE;
            }
            // One that comes before the last was sent adds nothing to it.
            () = notified(interrupt), if at == message.len() => {
                message.extend_from_slice(&wire::header(Kind::Interrupt, 0));
            }
            () = tokio::time::sleep_until(until) => return Err(Broken::Late),
        }
    }
}

async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn notified(notify: Option<&Notify>) {
    match notify {
        Some(notify) => notify.notified().await,
        None => std::future::pending().await,
    }
}

pub(super) fn message<T: serde::Serialize>(kind: Kind, body: &T) -> Vec<u8> {
    let mut message = Vec::new();
    // It is shorter than a frame may be: a path is the longest thing in it.
    if let Err(error) = wire::push_message(&mut message, kind, body) {
        tracing::error!(%error, "a message for a session could not be written");
    }
    message
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(
    kind: Kind,
    payload: &[u8],
) -> Result<T, String> {
    wire::parse_message(kind, payload).map_err(|error| error.to_string())
}

pub(super) fn unexpected(kind: Kind) -> String {
    format!("the runner sent an unexpected {kind:?} frame")
}

pub(super) fn told(broken: &Broken) -> String {
    match broken {
        Broken::Closed => "its runner has ended".to_owned(),
        Broken::NotThawed(error) => format!("it could not be thawed: {error}"),
        Broken::Protocol(error) => format!("its runner broke the protocol: {error}"),
        Broken::Late => "its runner did not answer in time".to_owned(),
    }
}
