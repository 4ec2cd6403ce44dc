//! The way to the server, on which small things travel together.
//!
//! Every write wakes the engine and the server, which on a small machine keeps a core from the program.
//! Most programs print once and end, so what they print waits a moment for the report that follows.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use isolator_runner::wire::{self, Kind};
use serde::Serialize;

/// Longest wait of a frame. Nobody who reads along notices it.
const SHORT: Duration = Duration::from_millis(5);

/// What is worth a write of its own, in bytes.
const MUCH: usize = 32 * 1024;

/// Frames on their way to the server.
pub(crate) struct Outbox<W> {
    stream: W,
    waiting: Vec<u8>,
    /// When the first of them was put in.
    since: Option<Instant>,
}

impl<W: Write> Outbox<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, waiting: Vec::new(), since: None }
    }

    /// Puts bytes in, as many frames as they need.
    pub(crate) fn put(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            wire::push_bytes(&mut self.waiting, kind, bytes);
            self.since.get_or_insert_with(Instant::now);
        }
        if self.waiting.len() >= MUCH { self.flush() } else { Ok(()) }
    }

    /// Puts a message in.
    pub(crate) fn put_message<T: Serialize>(&mut self, kind: Kind, message: &T) -> io::Result<()> {
        wire::push_message(&mut self.waiting, kind, message).map_err(io::Error::other)?;
        self.since.get_or_insert_with(Instant::now);
        if self.waiting.len() >= MUCH { self.flush() } else { Ok(()) }
    }

    /// Sends a frame without a payload, and all that waits before it.
    pub(crate) fn send_sign(&mut self, kind: Kind) -> io::Result<()> {
        self.waiting.extend_from_slice(&wire::header(kind, 0));
        self.flush()
    }

    /// Sends a message, and all that waits before it.
    pub(crate) fn send<T: Serialize>(&mut self, kind: Kind, message: &T) -> io::Result<()> {
        wire::push_message(&mut self.waiting, kind, message).map_err(io::Error::other)?;
        self.flush()
    }

    /// When what waits has to go, if anything waits.
    pub(crate) fn time(&self) -> Option<Instant> {
        self.since.map(|since| since + SHORT)
    }

    /// Sends what has waited long enough.
    pub(crate) fn flush_if_due(&mut self) -> io::Result<()> {
        if self.time().is_some_and(|time| Instant::now() >= time) { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.since = None;
        let sent = self.stream.write_all(&self.waiting);
        self.waiting.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_waits_for_the_report() {
        let mut sent = Vec::new();
        let mut outbox = Outbox::new(&mut sent);
        outbox.put(Kind::Stdout, b"hi").unwrap();
        assert!(outbox.time().is_some() && outbox.stream.is_empty());
        outbox.send(Kind::Exit, &0).unwrap();
        assert_eq!(outbox.time(), None);
        let [first, second] = [Kind::Stdout as u8, Kind::Exit as u8];
        assert_eq!(sent, [&[first, 0, 0, 0, 2], &b"hi"[..], &[second, 0, 0, 0, 1], b"0"].concat());
    }

    #[test]
    fn what_has_waited_or_is_large_goes_at_once() {
        let mut sent = Vec::new();
        let mut outbox = Outbox::new(&mut sent);
        outbox.put(Kind::Stdout, b"hi").unwrap();
        outbox.flush_if_due().unwrap();
        assert!(outbox.stream.is_empty());
        std::thread::sleep(SHORT);
        outbox.flush_if_due().unwrap();
        assert!(!outbox.stream.is_empty());
        outbox.put(Kind::Stdout, &[0; MUCH]).unwrap();
        assert!(outbox.time().is_none() && outbox.stream.len() > MUCH);
    }
}
