//! Waiting for descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// A descriptor that is waited for until it has something to read, or its end.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Waits until one of the descriptors is ready. Returns false if none was in time.
///
/// # Errors
///
/// When the kernel refuses, as it does if there are more of them than the process may have open.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        match poll(fds, Some(&left.try_into().map_err(io::Error::other)?)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}
