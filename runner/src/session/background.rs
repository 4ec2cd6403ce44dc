//! What processes of earlier cells print while none or a later one runs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use isolator_runner::wire::Kind;

use crate::frame_writer::FrameWriter;
use crate::output::Keeper;
use crate::process::would_block;

/// Kept of the beginning and of the end of it, in bytes.
const KEPT: (usize, usize) = (2 * 1024, 6 * 1024);

/// Pipes of earlier cells that are still read. A process that prints on an older one is told that nobody reads it.
const MAX_PIPES: usize = 32;

/// Read at once.
const CHUNK: usize = 64 * 1024;

/// The pipes of earlier cells that something still holds.
pub(super) struct Background {
    pipes: VecDeque<File>,
    keeper: Keeper,
}

impl Background {
    pub(super) fn new() -> Self {
        Self { pipes: VecDeque::new(), keeper: Keeper::new(KEPT.0, KEPT.1) }
    }

    /// Takes over a pipe of a cell that has ended.
    pub(super) fn add(&mut self, pipe: Option<File>) {
        self.pipes.extend(pipe);
        let excess = self.pipes.len().saturating_sub(MAX_PIPES);
        self.pipes.drain(..excess);
    }

    /// To be polled.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|pipe| pipe.as_fd())
    }

    /// Reads a chunk of what each pipe has.
    pub(super) fn read(&mut self) {
        let Self { pipes, keeper } = self;
        pipes.retain_mut(|pipe| drain(pipe, keeper, 1));
    }

    /// Reads a few chunks of a pipe that belongs to a kernel for its whole life.
    pub(super) fn read_from(&mut self, pipe: &mut File) {
        drain(pipe, &mut self.keeper, 4);
    }

    /// Sends what was printed since the last time. Returns how many bytes are missing.
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

/// Reads up to so many chunks. Tells whether the pipe is still open.
fn drain(pipe: &mut File, keeper: &mut Keeper, chunks: usize) -> bool {
    let mut buffer = [0; CHUNK];
    for _ in 0..chunks {
        match pipe.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => keeper.keep(&buffer[..count]),
            Err(error) => return would_block(&error),
        }
    }
    true
}
