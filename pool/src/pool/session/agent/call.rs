//! One call to an agent, from its request to the end of its stream.

use std::sync::Arc;

use bytes::Bytes;
use isolator_runner::wire::agent::{Answer, MESSAGE_HEADER, MessageKind, StreamEnd};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::error::Broken;
use super::hub::Hub;

/// Something that a call hears.
#[derive(Debug)]
pub(super) enum Heard {
    /// Its answer.
    Answer(Answer),
    /// A piece of its stream.
    Piece(MessageKind, Bytes),
    /// The end of its stream.
    End(StreamEnd),
    /// The end of the call, for another reason. Nothing follows.
    Broken(Broken),
}

impl Heard {
    /// Why there is nothing better.
    pub(super) fn broken(self) -> Broken {
        match self {
            Self::Broken(broken) => broken,
            Self::End(StreamEnd::Failed(failure)) => Broken::Failed(failure),
            Self::Answer(_) | Self::Piece(..) | Self::End(_) => Broken::Nonsense,
        }
    }
}

/// A call. Dropping it cancels what is left of it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) hub: Arc<Hub>,
    pub(super) number: u32,
    /// Credit that its stream begins with.
    pub(super) window: u32,
    /// Credit that the agent has used since it was given some.
    pub(super) used: u32,
    pub(super) ear: Ear,
}

/// The receiving end of a call. It repeats how the call has ended.
#[derive(Debug)]
pub(super) struct Ear {
    heard: mpsc::UnboundedReceiver<Heard>,
    broken: Option<Broken>,
}

impl Ear {
    pub(super) fn new(heard: mpsc::UnboundedReceiver<Heard>) -> Self {
        Self { heard, broken: None }
    }

    async fn next(&mut self) -> Heard {
        if let Some(broken) = &self.broken {
            return Heard::Broken(broken.clone());
        }
        // The sender is dropped only after it has sent an end.
        let heard = self.heard.recv().await.unwrap_or(Heard::Broken(Broken::Nonsense));
        self.broken = match &heard {
            Heard::Broken(broken) => Some(broken.clone()),
            Heard::End(StreamEnd::Failed(failure)) => Some(Broken::Failed(*failure)),
            Heard::Answer(_) | Heard::Piece(..) | Heard::End(_) => None,
        };
        heard
    }
}

impl Call {
    /// Sends a message of the call. Returns when there is room for others.
    ///
    /// # Errors
    ///
    /// When the call has ended meanwhile.
    pub(super) async fn send(&mut self, kind: MessageKind, body: &[u8]) -> Result<(), Broken> {
        let Self { hub, ear, .. } = self;
        let permit = tokio::select! {
            biased;
            heard = ear.next() => return Err(heard.broken()),
            permit = hub.room(MESSAGE_HEADER + body.len()) => permit,
        };
        self.hub.queue(self.number, kind, body, permit);
        Ok(())
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// When it is a failure, or there is none.
    pub(super) async fn answer(&mut self) -> Result<Answer, Broken> {
        match self.ear.next().await {
            Heard::Answer(answer) => Ok(answer),
            other => Err(other.broken()),
        }
    }

    /// Says that everything was sent, and waits for the answer to that.
    ///
    /// # Errors
    ///
    /// When it is a failure, or there is none.
    pub(super) async fn finish(&mut self) -> Result<Answer, Broken> {
        self.send(MessageKind::Finish, &[]).await?;
        self.answer().await
    }

    /// The next piece of the stream, or its end. The agent gets credit for more.
    pub(super) async fn next(&mut self) -> Heard {
        let heard = self.ear.next().await;
        if let Heard::Piece(_, body) = &heard {
            self.used += isolator_runner::wire::agent::cost(body.len());
            if self.used >= self.window / 2 {
                self.hub.give_credit(self.number, std::mem::take(&mut self.used));
            }
        }
        heard
    }

    /// Reads a piece.
    ///
    /// # Errors
    ///
    /// When it is not what it should be.
    pub(super) fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Broken> {
        serde_json::from_slice(body).map_err(|_| Broken::Nonsense)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.hub.cancel(self.number);
    }
}
