//! One call to an agent, from its request to the end of its stream.

use std::sync::Arc;

use isolator_runner::wire::agent::{
    Answer, MAX_REQUEST, MESSAGE_HEADER, MessageKind, Request, StreamEnd,
};
use serde::de::DeserializeOwned;

use super::error::Broken;
use super::hub::Hub;
use super::messages::{CallKind, Heard, Heards};

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
    heard: Heards,
    broken: Option<Broken>,
}

impl Ear {
    pub(super) fn new(heard: Heards) -> Self {
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

impl Hub {
    /// Calls the agent, and waits for its answer.
    ///
    /// # Errors
    ///
    /// When it is a failure, or there is none.
    pub(super) async fn call(
        self: &Arc<Self>,
        kind: CallKind,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<(Answer, Call), Broken> {
        let mut call = Call::begin(self, kind)?;
        let body = serde_json::to_vec(&request(call.window)).map_err(|_| Broken::Nonsense)?;
        if body.len() > MAX_REQUEST {
            return Err(Broken::TooLong(body.len(), MAX_REQUEST));
        }
        call.send(MessageKind::Request, &body).await?;
        let answer = call.answer().await?;
        Ok((answer, call))
    }

    /// Sends input to a process, and waits until it has room for it.
    ///
    /// # Errors
    ///
    /// When it has none, or ends before it.
    pub(super) async fn input(self: &Arc<Self>, pid: u32, bytes: &[u8]) -> Result<(), Broken> {
        let mut call = Call::begin(self, CallKind::Input)?;
        call.send(MessageKind::Input, &[&pid.to_be_bytes(), bytes].concat()).await?;
        call.answer().await.map(drop)
    }
}

impl Call {
    fn begin(hub: &Arc<Hub>, kind: CallKind) -> Result<Self, Broken> {
        let (number, window, heard) = hub.begin(kind)?;
        Ok(Self { hub: Arc::clone(hub), number, window, used: 0, ear: Ear::new(heard) })
    }

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
