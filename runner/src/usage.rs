//! CPU time of processes: system calls that the safe wrappers do not have.
#![allow(unsafe_code)]

use std::time::Duration;

use isolator_runner::wire::End;
use rustix::process::Pid;

/// A child that has ended.
pub(crate) struct Reaped {
    pub(crate) pid: Pid,
    pub(crate) end: End,
    /// User and system time, its own and that of the children that it has waited for.
    pub(crate) cpu: Duration,
}

/// Reaps a child that has ended; `None` if there is none.
pub(crate) fn reap() -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live variables of this frame, which the kernel fills.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    if pid <= 0 {
        return None;
    }
    let pid = Pid::from_raw(pid)?;
    let end = if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Code(libc::WEXITSTATUS(status))
    };
    Some(Reaped { pid, end, cpu: duration(usage.ru_utime) + duration(usage.ru_stime) })
}

/// User and system time of a process that runs; zero if there is none of that number.
pub(crate) fn process_cpu(pid: Pid) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live variable of this frame, which the C library fills.
    if unsafe { libc::clock_getcpuclockid(pid.as_raw_pid(), &raw mut clock) } != 0 {
        return Duration::ZERO;
    }
    // SAFETY: the same.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Duration::ZERO;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
