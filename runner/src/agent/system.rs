//! Terminals and signals: system calls that the safe wrappers do not have.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use isolator_runner::wire::agent::TerminalSize;
use rustix::process::{Pid, Signal, set_parent_process_death_signal, setsid};

/// Opens the other end of a terminal by its first end. The C library has no name for it on all machines.
const TIOCGPTPEER: u32 = 0x5441;

/// The highest signal of the kernel.
const LAST_SIGNAL: i32 = 64;

/// Makes a terminal. Returns the end of the agent, which does not block, and that of the process.
pub(super) fn terminal(size: TerminalSize) -> io::Result<(File, OwnedFd)> {
    let open = File::options().read(true).write(true).clone();
    // It becomes no terminal of the agent, because the agent leads no session.
    let ours = open.open("/dev/ptmx")?;
    let locked = 0_i32;
    // SAFETY: the pointer is to a live variable of this frame.
    check(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK as _, &raw const locked) })?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the call takes a number.
    let theirs = check(unsafe { libc::ioctl(ours.as_raw_fd(), TIOCGPTPEER as _, flags) })?;
    // SAFETY: the kernel has just made the descriptor, and nothing else has it.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    resize(&ours, size)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sets the size of a terminal.
pub(super) fn resize(
    terminal: &File,
    TerminalSize { rows, columns }: TerminalSize,
) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointer is to a live variable of this frame.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ as _, &raw const size) })?;
    Ok(())
}

/// Has a command lead a session of processes, with its standard input as terminal if it `has_terminal`, and end with the agent.
pub(super) fn lead(command: &mut Command, has_terminal: bool) {
    let lead = move || {
        setsid()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if has_terminal {
            // SAFETY: the call takes a number.
            check(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY as _, 0) })?;
        }
        Ok(())
    };
    // SAFETY: these calls are safe between fork and exec.
    unsafe {
        command.pre_exec(lead);
    }
}

/// Sends a signal to a group of processes; `None` if there is no such signal.
pub(super) fn signal_group(group: Pid, signal: i32) -> Option<io::Result<()>> {
    if !(1..=LAST_SIGNAL).contains(&signal) {
        return None;
    }
    // SAFETY: the call takes two numbers. The group is that of a child that was not reaped.
    Some(check(unsafe { libc::kill(-group.as_raw_pid(), signal) }).map(drop))
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
