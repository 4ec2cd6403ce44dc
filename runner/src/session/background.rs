//! Output of processes that earlier cells have left.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use isolator_runner::wire::Kind;

use crate::frame_writer::FrameWriter;
use crate::output::{CHUNK, Keeper, read_chunk};

/// Bytes that are kept of its beginning and of its end.
const KEPT: (usize, usize) = (2 * 1024, 6 * 1024);

/// Maximum number of pipes of earlier cells that are read. Older ones are closed, so a process that prints there gets an error.
const MAX_PIPES: usize = 32;

/// The pipes of earlier cells that a process still holds.
pub(super) struct Background {
    pipes: VecDeque<File>,
    keeper: Keeper,
}

impl Background {
    pub(super) fn new() -> Self {
        Self { pipes: VecDeque::new(), keeper: Keeper::new(KEPT.0, KEPT.1) }
    }

    /// Takes over the pipes of a cell that has ended.
    pub(super) fn add(&mut self, pipes: [Option<File>; 2]) {
        self.pipes.extend(pipes.into_iter().flatten());
        let excess = self.pipes.len().saturating_sub(MAX_PIPES);
        self.pipes.drain(..excess);
    }

    /// The descriptors to poll.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|pipe| pipe.as_fd())
    }

    /// Reads a chunk of each pipe.
    pub(super) fn read(&mut self) {
        let Self { pipes, keeper } = self;
        pipes.retain_mut(|pipe| drain(pipe, keeper, 1));
    }

    /// Reads a few chunks of a pipe that a kernel keeps.
    pub(super) fn read_from(&mut self, pipe: &mut File) {
        drain(pipe, &mut self.keeper, 4);
    }

    /// Sends the output since the last time. Returns how many bytes are missing.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone.
    pub(super) fn send(&mut self, to_server: &mut FrameWriter<File>) -> io::Result<u64> {
        let keeper = std::mem::replace(&mut self.keeper, Keeper::new(KEPT.0, KEPT.1));
        let (kept, dropped) = keeper.into_kept();
        to_server.queue(Kind::Background, &kept)?;
        Ok(dropped)
    }
}

/// Reads up to that number of chunks. Returns whether the pipe is still open.
fn drain(pipe: &mut File, keeper: &mut Keeper, chunks: usize) -> bool {
    let mut buffer = [0; CHUNK];
    for _ in 0..chunks {
        match read_chunk(pipe, &mut buffer) {
            Some([]) => break,
            Some(bytes) => keeper.keep(bytes),
            None => return false,
        }
    }
    true
}
