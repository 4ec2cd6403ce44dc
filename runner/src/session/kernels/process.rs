//! One process of a kernel: the session itself, or a checkpoint.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::poll;
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
