//! Processes by descriptors, which never stand for another process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// The directory of a process in `/proc`.
///
/// # Errors
///
/// When the process has ended.
pub(super) fn directory(process: &OwnedFd) -> io::Result<PathBuf> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    // Its number in this process's namespace; -1 when it was reaped.
    let pid: Option<u32> =
        info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.map(|pid| format!("/proc/{pid}").into())
        .ok_or_else(|| io::Error::other("the process has ended"))
}

/// Whether a process ends within some time.
pub(super) fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let within = within.try_into().ok();
    poll(&mut fds, within.as_ref()).is_ok_and(|ready| ready > 0)
}
