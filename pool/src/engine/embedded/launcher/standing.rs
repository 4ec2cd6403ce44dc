//! What a launcher would have from whoever started the server, and leave to every sandbox: its umask, its priorities, and
//! how the kernel lays out its memory. Signals and limits were set back when the process began.
//!
//! The CPUs on which the server may run (`taskset`) and the memory nodes that it uses (`numactl`) hold for sandboxes, too:
//! they say which part of the machine is the server's.

use std::fs;
use std::io;
use std::num::NonZeroU64;

use rustix::fs::Mode;
use rustix::process::{getpriority_process, setpriority_process, umask};
use rustix::thread::{disable_transparent_huge_pages, set_current_timer_slack};
use syscalls::{Sysno, syscall};

/// As on every system, and with every container engine.
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// The kernel's default for ordinary processes, in nanoseconds.
const TIMER_SLACK: u64 = 50_000;

/// The chance to be killed when memory runs out. The server may have a lower one than usual, and programs have a higher one
/// of their own.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Resets all of it. Returns a message for each part that programs still inherit, because the kernel refuses to change it.
pub(super) fn set_back() -> Vec<String> {
    umask(UMASK);
    if is_score_high() {
        // Without root it can stay higher. Programs set theirs from there.
        let _ = fs::write(OOM_SCORE_FILE, "0");
    }
    let steps = [
        ("personality", call(Sysno::personality, [0, 0, 0])),
        ("scheduler", set_scheduler()),
        ("I/O priority", set_io_priority()),
        ("nice value", set_nice_value()),
        // It can't be set before: a process with a real-time priority has none.
        ("timer slack", set_current_timer_slack(NonZeroU64::new(TIMER_SLACK)).map_err(Into::into)),
        // Some services disable it, for all that they start.
        ("want of huge pages", disable_transparent_huge_pages(false).map_err(Into::into)),
    ];
    let refused = steps.into_iter().filter_map(|(what, set)| Some((what, set.err()?)));
    refused
        .map(|(what, error)| {
            format!(
                "programs have the {what} of the server, which it may not change ({error}): start it without one of \
                 its own, or as root with CAP_SYS_NICE"
            )
        })
        .collect()
}

fn is_score_high() -> bool {
    let score = fs::read_to_string(OOM_SCORE_FILE).unwrap_or_default();
    score.trim().parse::<i32>().is_ok_and(|score| score > 0)
}

/// A program with a real-time priority could take a core from all others.
fn set_scheduler() -> io::Result<()> {
    const SCHED_OTHER: usize = 0;
    let parameters = 0_i32;
    call(Sysno::sched_setscheduler, [0, SCHED_OTHER, (&raw const parameters).addr()])
}

fn set_io_priority() -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: usize = 1;
    const NONE: usize = 0;
    call(Sysno::ioprio_set, [IOPRIO_WHO_PROCESS, 0, NONE])
}

fn set_nice_value() -> io::Result<()> {
    if getpriority_process(None)? != 0 {
        setpriority_process(None, 0)?;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn call(call: Sysno, [first, second, third]: [usize; 3]) -> io::Result<()> {
    // SAFETY: of memory only the scheduler's parameters are passed, which the kernel reads and which live as long as the
    // call.
    let done = unsafe { syscall!(call, first, second, third) };
    done.map(|_| ()).map_err(|error| io::Error::from_raw_os_error(error.into_raw()))
}
