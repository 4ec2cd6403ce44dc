//! Writes frames to the server, small ones together.
//!
//! Every write wakes the engine and the server, which takes a core from the program on a small machine.
//! Most programs print once and end, so their output waits a moment for the report.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use isolator_runner::wire::{self, Kind};
use serde::Serialize;

/// Longest delay of a frame, which is too short to be noticed.
const MAX_DELAY: Duration = Duration::from_millis(5);

/// Bytes that are written at once, without waiting.
const FLUSH_SIZE: usize = 32 * 1024;

/// Frames on their way to the server.
pub(crate) struct FrameWriter<W> {
    stream: W,
    waiting: Vec<u8>,
    /// When the first of them was queued.
    since: Option<Instant>,
}

impl<W: Write> FrameWriter<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, waiting: Vec::new(), since: None }
    }

    /// Queues bytes, in as many frames as they need.
    pub(crate) fn queue(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            wire::push_bytes(&mut self.waiting, kind, bytes);
            self.since.get_or_insert_with(Instant::now);
        }
        if self.waiting.len() >= FLUSH_SIZE { self.flush() } else { Ok(()) }
    }

    /// Queues a message.
    pub(crate) fn queue_message<T: Serialize>(
        &mut self,
        kind: Kind,
        message: &T,
    ) -> io::Result<()> {
        wire::push_message(&mut self.waiting, kind, message)?;
        self.since.get_or_insert_with(Instant::now);
        if self.waiting.len() >= FLUSH_SIZE { self.flush() } else { Ok(()) }
    }

    /// Sends a frame without a payload, and everything queued before it.
    pub(crate) fn send_empty(&mut self, kind: Kind) -> io::Result<()> {
        self.waiting.extend_from_slice(&wire::header(kind, 0));
        self.flush()
    }

    /// Sends a message, and everything queued before it.
    pub(crate) fn send<T: Serialize>(&mut self, kind: Kind, message: &T) -> io::Result<()> {
        wire::push_message(&mut self.waiting, kind, message)?;
        self.flush()
    }

    /// Sends bytes, and everything queued before them.
    pub(crate) fn send_bytes(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        wire::push_bytes(&mut self.waiting, kind, bytes);
        self.flush()
    }

    /// When the queued frames must be sent, if there are any.
    pub(crate) fn flush_at(&self) -> Option<Instant> {
        self.since.map(|since| since + MAX_DELAY)
    }

    /// Sends the queued frames if they have waited long enough.
    pub(crate) fn flush_if_due(&mut self) -> io::Result<()> {
        if self.flush_at().is_some_and(|time| Instant::now() >= time) {
            self.flush()
        } else {
            Ok(())
        }
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
    fn small_frames_wait_for_the_report() {
        let mut sent = Vec::new();
        let mut frame_writer = FrameWriter::new(&mut sent);
        frame_writer.queue(Kind::Stdout, b"hi").unwrap();
        assert!(frame_writer.flush_at().is_some() && frame_writer.stream.is_empty());
        frame_writer.send(Kind::Exit, &0).unwrap();
        assert_eq!(frame_writer.flush_at(), None);
        let [first, second] = [Kind::Stdout as u8, Kind::Exit as u8];
        assert_eq!(sent, [&[first, 0, 0, 0, 2], &b"hi"[..], &[second, 0, 0, 0, 1], b"0"].concat());
    }

    #[test]
    fn old_or_large_frames_are_sent_at_once() {
        let mut sent = Vec::new();
        let mut frame_writer = FrameWriter::new(&mut sent);
        frame_writer.queue(Kind::Stdout, b"hi").unwrap();
        frame_writer.flush_if_due().unwrap();
        assert!(frame_writer.stream.is_empty());
        std::thread::sleep(MAX_DELAY);
        frame_writer.flush_if_due().unwrap();
        assert!(!frame_writer.stream.is_empty());
        frame_writer.queue(Kind::Stdout, &[0; FLUSH_SIZE]).unwrap();
        assert!(frame_writer.flush_at().is_none() && frame_writer.stream.len() > FLUSH_SIZE);
    }
}
