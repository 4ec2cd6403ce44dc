//! The server's side of the connection to one runner.
//!
//! A task reads the stream, so that a sandbox that dies while it is parked is noticed
//! when it happens and not when it is needed.

use futures_util::StreamExt;
use isolator_runner::wire::{
    self, FrameDecoder, Kind, Preload, Preloaded, Ready, VERSION, WireError,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::engine::{Channel, EngineError};

/// Number of frames that are read ahead. More of them wait in the engine and in the runner's pipe, where the
/// sandbox's limits apply.
const READ_AHEAD: usize = 16;

/// A frame: its kind and its payload.
pub(crate) type Frame = (Kind, Vec<u8>);

/// An open stream to a runner.
pub(crate) struct Connection {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    // On the heap, because sandboxes are moved from step to step.
    unsent: Box<Unsent>,
    frames: mpsc::Receiver<Result<Frame, ConnectionError>>,
}

/// Bytes that are still to be sent.
#[derive(Default)]
struct Unsent {
    message: Vec<u8>,
    /// Bytes of the message that were written.
    sent: usize,
}

/// Why the stream to a runner failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The runner broke the protocol.
    #[error("the runner broke the protocol: {0}")]
    Protocol(#[from] WireError),
    /// The engine's end of the stream failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The stream ended before the runner was ready.
    #[error("the runner ended before it was ready")]
    NeverReady,
    /// The runner speaks another version.
    #[error("the runner speaks version {0} of the protocol, not {VERSION}")]
    Version(u32),
}

impl Connection {
    /// Waits until the runner behind `channel` is parked. `on_close` is called when the stream has
    /// ended, however and whenever.
    pub(crate) async fn open(
        channel: Channel,
        tasks: &TaskTracker,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ConnectionError> {
        let Channel { input, output } = channel;
        let (sender, frames) = mpsc::channel(READ_AHEAD);
        tasks.spawn(async move {
            tokio::select! {
                () = read_frames(output, &sender) => {}
                () = sender.closed() => {}
            }
            drop(sender);
            on_close();
        });
        let mut connection = Self { input, unsent: Box::default(), frames };
        let ready: Ready = connection.expect(Kind::Ready).await?;
        if ready.version != VERSION {
            return Err(ConnectionError::Version(ready.version));
        }
        Ok(connection)
    }

    /// Tells the runner to start an interpreter, and waits until it is ready.
    pub(crate) async fn preload(
        &mut self,
        preload: &Preload,
    ) -> Result<Preloaded, ConnectionError> {
        let mut message = Vec::new();
        wire::push_message(&mut message, Kind::Preload, preload)?;
        self.input.write_all(&message).await.map_err(WireError::from)?;
        self.input.flush().await.map_err(WireError::from)?;
        self.expect(Kind::Preloaded).await
    }

    /// Receives the next message, which must be of this kind.
    async fn expect<T: DeserializeOwned>(&mut self, expected: Kind) -> Result<T, ConnectionError> {
        match self.frames.recv().await {
            Some(Ok((kind, payload))) if kind == expected => {
                Ok(wire::parse_message(kind, &payload)?)
            }
            Some(Ok((kind, _))) => Err(WireError::Unexpected(kind).into()),
            Some(Err(error)) => Err(error),
            None => Err(ConnectionError::NeverReady),
        }
    }

    /// Whether the stream has ended: the runner, or its sandbox, is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.frames.is_closed()
    }

    /// Splits into the two halves, which an exchange uses at the same time. A message that was not sent as a whole stays in the
    /// connection, and goes on the next time.
    pub(crate) fn split(&mut self) -> (Sender<'_>, Receiver<'_>) {
        let sender = Sender { input: &mut self.input, unsent: &mut self.unsent };
        (sender, Receiver(&mut self.frames))
    }
}

/// The sending half, with the bytes that are still to be sent.
pub(crate) struct Sender<'a> {
    input: &'a mut (dyn AsyncWrite + Send + Unpin),
    unsent: &'a mut Unsent,
}

impl Sender<'_> {
    /// Whether everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.message.is_empty()
    }

    /// Adds a message to the bytes that are to be sent.
    pub(crate) fn push(&mut self, mut message: Vec<u8>) {
        let Unsent { message: unsent, .. } = self.unsent;
        if unsent.is_empty() {
            *unsent = message;
        } else {
            unsent.append(&mut message);
        }
    }

    /// Sends everything. If the future is dropped, the next one goes on where it was.
    pub(crate) async fn send(&mut self) {
        if let Err(error) = self.write().await {
            // A stream that broke while sending says why on the way back.
            tracing::debug!(%error, "a message could not be sent");
        }
        *self.unsent = Unsent::default();
    }

    async fn write(&mut self) -> std::io::Result<()> {
        let Unsent { message, sent } = &mut *self.unsent;
        while *sent < message.len() {
            match self.input.write(&message[*sent..]).await? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                count => *sent += count,
            }
        }
        self.input.flush().await
    }
}

/// The receiving half.
pub(crate) struct Receiver<'a>(&'a mut mpsc::Receiver<Result<Frame, ConnectionError>>);

impl Receiver<'_> {
    /// The next frame; `None` once the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Frame, ConnectionError>> {
        self.0.recv().await
    }
}

async fn read_frames(
    mut output: futures_util::stream::BoxStream<'static, Result<bytes::Bytes, EngineError>>,
    frames: &mpsc::Sender<Result<Frame, ConnectionError>>,
) {
    let mut decoder = FrameDecoder::default();
    while let Some(piece) = output.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                let _ = frames.send(Err(error.into())).await;
                return;
            }
        };
        decoder.feed(&piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    if frames.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let _ = frames.send(Err(error.into())).await;
                    return;
                }
            }
        }
    }
}
