//! CPU time of ended children: the one system call that the safe wrappers do not offer.
#![allow(unsafe_code)]

use std::time::Duration;

/// User and system time of all children that ended and were waited for, and of theirs.
pub(crate) fn children_cpu() -> Duration {
    // SAFETY: `rusage` is plain numbers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage` of this frame, which the kernel fills.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Duration::ZERO;
    }
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
