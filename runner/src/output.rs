//! The output of a program or a cell. The head and the tail of each stream are kept, and what is between them is counted: a stream
//! may be endless.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Kind, OutputLimits, StreamCount};

use crate::frame_writer::FrameWriter;
use crate::poll;
use crate::process::would_block;

/// Read from a pipe at once: what a Linux pipe holds by default.
pub(crate) const CHUNK: usize = 64 * 1024;

/// Reads what a pipe holds, a chunk at most; nothing if it is empty. `None` once it is closed.
pub(crate) fn read_chunk<'a>(pipe: &mut File, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    match pipe.read(buffer) {
        Ok(0) => None,
        Ok(count) => Some(&buffer[..count]),
        Err(error) => would_block(&error).then_some(&[]),
    }
}

/// The last line with text in what a pipe holds, if there is one.
pub(crate) fn last_line(pipe: Option<&mut File>) -> Option<String> {
    let mut buffer = [0; CHUNK];
    let printed = String::from_utf8_lossy(read_chunk(pipe?, &mut buffer)?);
    printed.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Standard output and standard error. The heads are sent as they come.
pub(crate) struct Output {
    stdout: Stream,
    stderr: Stream,
    /// Bytes of both that are too many.
    kill: u64,
}

struct Stream {
    kind: Kind,
    /// Gone once it is closed.
    pipe: Option<File>,
    keeper: Keeper,
}

impl Output {
    pub(crate) fn new(pipes: [Option<File>; 2], limits: &OutputLimits) -> Self {
        let OutputLimits { head, tail, kill } = *limits;
        let stream = |kind, pipe| Stream { kind, pipe, keeper: Keeper::new(head, tail) };
        let [stdout, stderr] = pipes;
        Self { stdout: stream(Kind::Stdout, stdout), stderr: stream(Kind::Stderr, stderr), kill }
    }

    /// The pipes that are open, to be polled.
    pub(crate) fn pipes(&self) -> impl Iterator<Item = &File> {
        [&self.stdout, &self.stderr].into_iter().filter_map(|stream| stream.pipe.as_ref())
    }

    /// Reads what each pipe holds, a chunk at most, so that neither stream starves the other.
    pub(crate) fn read(&mut self, to_server: &mut FrameWriter<File>) -> io::Result<()> {
        self.stdout.read(to_server)?;
        self.stderr.read(to_server)
    }

    /// Reads what still comes, until both pipes are closed or the time is over.
    pub(crate) fn drain(
        &mut self,
        timeout: Duration,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        let until = Instant::now() + timeout;
        while !self.is_closed() && Instant::now() < until {
            let mut fds: Vec<_> = self.pipes().map(|pipe| poll::readable(pipe.as_fd())).collect();
            poll::wait(&mut fds, until.saturating_duration_since(Instant::now()))?;
            self.read(to_server)?;
        }
        Ok(())
    }

    /// Whether both pipes are closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.pipes().next().is_none()
    }

    /// Whether more was printed than is allowed.
    pub(crate) fn is_too_long(&self) -> bool {
        self.stdout.keeper.total + self.stderr.keeper.total > self.kill
    }

    /// Sends the tails. Returns the counts of both streams, and the pipes that other processes still hold.
    pub(crate) fn finish(
        self,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<([StreamCount; 2], [Option<File>; 2])> {
        let (stdout, out) = self.stdout.finish(to_server)?;
        let (stderr, err) = self.stderr.finish(to_server)?;
        Ok(([stdout, stderr], [out, err]))
    }
}

impl Stream {
    fn read(&mut self, to_server: &mut FrameWriter<File>) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        match read_chunk(pipe, &mut [0; CHUNK]) {
            Some(bytes) => to_server.queue(self.kind, self.keeper.push(bytes)),
            None => {
                self.pipe = None;
                Ok(())
            }
        }
    }

    fn finish(self, to_server: &mut FrameWriter<File>) -> io::Result<(StreamCount, Option<File>)> {
        let (tail, count) = self.keeper.finish();
        to_server.queue(self.kind, &tail)?;
        Ok((count, self.pipe))
    }
}

/// Keeps the first `head` and the last `tail` bytes of a stream in bounded memory.
pub(crate) struct Keeper {
    head: usize,
    tail: usize,
    total: u64,
    last: VecDeque<u8>,
    /// The head, if it is not sent as it comes.
    first: Vec<u8>,
}

impl Keeper {
    pub(crate) fn new(head: usize, tail: usize) -> Self {
        Self { head, tail, total: 0, last: VecDeque::new(), first: Vec::new() }
    }

    /// Takes the next bytes, and keeps those of the head, too.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        let now = self.push(bytes).len();
        self.first.extend_from_slice(&bytes[..now]);
    }

    /// All that was kept, with a line where something is missing, and how many bytes are.
    pub(crate) fn into_kept(mut self) -> (Vec<u8>, u64) {
        let mut kept = std::mem::take(&mut self.first);
        let (last, count) = self.finish();
        if count.dropped > 0 {
            kept.extend_from_slice(b"\n...\n");
        }
        kept.extend_from_slice(&last);
        (kept, count.dropped)
    }

    /// Takes the next bytes; returns those that belong to the head and can be sent at once.
    pub(crate) fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let room = self.head.saturating_sub(usize::try_from(self.total).unwrap_or(usize::MAX));
        self.total += bytes.len() as u64;
        let (now, later) = bytes.split_at(room.min(bytes.len()));
        let later = &later[later.len().saturating_sub(self.tail)..];
        let excess = (self.last.len() + later.len()).saturating_sub(self.tail);
        self.last.drain(..excess);
        self.last.extend(later);
        now
    }

    /// The tail, and the stream's count.
    pub(crate) fn finish(self) -> (Vec<u8>, StreamCount) {
        let sent = self.total.min(self.head as u64);
        let dropped = self.total - sent - self.last.len() as u64;
        (self.last.into(), StreamCount { total: self.total, dropped })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_stream_is_all_head() {
        let mut keeper = Keeper::new(8, 4);
        assert_eq!(keeper.push(b"hello"), b"hello");
        assert_eq!(keeper.finish(), (vec![], StreamCount { total: 5, dropped: 0 }));
    }

    #[test]
    fn the_middle_of_a_long_stream_is_dropped_and_counted() {
        let mut keeper = Keeper::new(2, 3);
        assert_eq!(keeper.push(b"abcdefghij"), b"ab");
        assert_eq!(keeper.finish(), (b"hij".to_vec(), StreamCount { total: 10, dropped: 5 }));
    }

    proptest! {
        #[test]
        fn head_dropped_and_tail_are_the_whole_stream(
            stream in prop::collection::vec(any::<u8>(), 0..400),
            cut in 1_usize..50,
            head in 0_usize..100,
            tail in 0_usize..100,
        ) {
            let mut keeper = Keeper::new(head, tail);
            let mut sent = Vec::new();
            for piece in stream.chunks(cut) {
                sent.extend_from_slice(keeper.push(piece));
            }
            let (last, count) = keeper.finish();
            prop_assert_eq!(count.total, stream.len() as u64);
            prop_assert_eq!(sent.len() as u64 + count.dropped + last.len() as u64, count.total);
            prop_assert_eq!(&sent[..], &stream[..sent.len()]);
            prop_assert_eq!(&last[..], &stream[stream.len() - last.len()..]);
            prop_assert!(count.dropped == 0 || (sent.len() == head && last.len() == tail));
        }
    }
}
