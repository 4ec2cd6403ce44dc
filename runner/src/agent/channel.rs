//! The channel to the runner, and through it to the server. Never waits.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use isolator_runner::wire::agent::{
    self, Answer, Failure, MESSAGE_HEADER, Message, MessageDecoder, MessageKind, StreamEnd,
};
use serde::Serialize;

use crate::process::would_block;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// Bytes that wait to be written, from which on streams do not go on, and from which on no requests are taken.
const FULL: usize = 128 * 1024;
const OVERFULL: usize = 256 * 1024;

/// The agent's end of the channel.
pub(super) struct Channel {
    socket: UnixStream,
    decoder: MessageDecoder,
    unsent: Vec<u8>,
    /// Bytes of messages that were taken, and those of them that the server knows of.
    consumed: u64,
    reported: u64,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let decoder = MessageDecoder::default();
        Ok(Self { socket, decoder, unsent: Vec::new(), consumed: 0, reported: 0 })
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is room for pieces of streams.
    pub(super) fn has_room(&self) -> bool {
        self.unsent.len() < FULL
    }

    /// Whether requests are taken.
    pub(super) fn takes(&self) -> bool {
        self.unsent.len() < OVERFULL
    }

    /// Whether something waits to be written.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes as much as the runner takes.
    ///
    /// # Errors
    ///
    /// When the runner is gone.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            match self.socket.write(&self.unsent[written..]) {
                _ if written == self.unsent.len() => break Ok(()),
                Ok(count) => written += count,
                Err(error) if would_block(&error) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.unsent.drain(..written);
        result
    }

    /// Reads once. Returns whether the runner is still there.
    ///
    /// # Errors
    ///
    /// When the channel fails.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        if !self.takes() {
            return Ok(true);
        }
        let mut buffer = [0; CHUNK];
        match self.socket.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.decoder.feed(&buffer[..count]);
                Ok(true)
            }
            Err(error) if would_block(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The next message that was read.
    ///
    /// # Errors
    ///
    /// When the server has broken the protocol.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        let message = self.decoder.next_message().map_err(io::Error::other)?;
        if let Some((_, _, body)) = &message {
            self.consumed += (MESSAGE_HEADER + body.len()) as u64;
        }
        Ok(message)
    }

    /// Tells the server how much was read, if that is more than before.
    pub(super) fn report_consumed(&mut self) {
        if self.reported != self.consumed {
            self.reported = self.consumed;
            self.say(MessageKind::Consumed, 0, &self.consumed.to_be_bytes());
        }
    }

    /// Sends a message.
    pub(super) fn say(&mut self, kind: MessageKind, call: u32, body: &[u8]) {
        agent::push(&mut self.unsent, kind, call, body);
    }

    /// Sends the answer to a call.
    pub(super) fn answer(&mut self, call: u32, answer: &Result<Answer, Failure>) {
        self.say_json(MessageKind::Answer, call, answer);
    }

    /// Ends a stream.
    pub(super) fn end(&mut self, call: u32, end: &StreamEnd) {
        self.say_json(MessageKind::End, call, end);
    }

    fn say_json<T: Serialize>(&mut self, kind: MessageKind, call: u32, body: &T) {
        // These types have no maps with other keys than texts, so there is no error.
        let body = serde_json::to_vec(body).unwrap_or_default();
        self.say(kind, call, &body);
    }
}
