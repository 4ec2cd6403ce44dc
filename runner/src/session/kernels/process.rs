//! One process of a kernel: the session itself, or a checkpoint.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use super::BEGIN_TIMEOUT;
use crate::poll;
use crate::process::nonblocking;
use crate::session::channel::Channel;

/// A process of the kernel.
pub(in crate::session) struct KernelProcess {
    pub(in crate::session) pid: Pid,
    /// Readable once the process has ended.
    pub(super) pidfd: OwnedFd,
    pub(in crate::session) channel: Channel,
    /// Number of cells that have made its state.
    pub(in crate::session) depth: u32,
    /// The processes that were there when the first cell that is undone with it began, if there is one. All others belong to its
    /// cells.
    pub(super) found: Option<HashSet<Pid>>,
}

impl KernelProcess {
    pub(in crate::session) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(in crate::session) fn has_ended(&self) -> bool {
        matches!(poll::wait(&mut [poll::readable(self.pidfd())], Duration::ZERO), Ok(true))
    }

    pub(in crate::session) fn signal(&self, signal: Signal) {
        // An error means that it has just ended.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Gives a kernel in Node.js another channel, which takes the place of the one that it was started with. Its children would inherit
/// that one: Node.js can't change it. What comes in a message is not inherited.
pub(super) fn handed_over(first: &Channel) -> io::Result<Channel> {
    let (ours, theirs) = UnixStream::pair()?;
    first.send(b'H', &[], &[theirs.as_fd()], BEGIN_TIMEOUT)?;
    Channel::new(ours.into())
}

/// A pipe for the output of a kernel.
pub(super) fn pipe() -> io::Result<(File, PipeWriter)> {
    let (reader, writer): (PipeReader, PipeWriter) = io::pipe()?;
    Ok((nonblocking(reader.into())?, writer))
}
