//! The third process, inside: it becomes like a program of the sandbox.

use linux_raw_sys::general::_LINUX_CAPABILITY_VERSION_3;
use linux_raw_sys::net::{AF_UNIX, MSG_NOSIGNAL, SOCK_STREAM};
use linux_raw_sys::prctl::{PR_CAPBSET_DROP, PR_SET_DUMPABLE};

use crate::call::{Errno, Sysno, syscall};
use crate::protocol::CHANNEL;
use crate::socket::{Request, pass_on};

/// Highest capability that a kernel may have.
const MOST_CAPABILITIES: usize = 63;

/// Waits for its place in the control groups, gives up every right that was needed to enter, and then makes the streams of a program:
/// the user that makes a pipe owns it, and only the owner can open `/dev/stdin`. Returns the server's word.
pub(crate) fn settle(request: &Request) -> Result<u8, Errno> {
    let word = wait_for_place(request.server())?;
    // SAFETY: of memory only the sets of capabilities are passed, which live as long as the calls.
    unsafe {
        syscall!(Sysno::setgroups, 0, 0)?;
        let (user, group) = (request.user, request.group);
        syscall!(Sysno::setresgid, group, group, group)?;
        syscall!(Sysno::setresuid, user, user, user)?;
        for capability in 0..=MOST_CAPABILITIES {
            match syscall!(Sysno::prctl, PR_CAPBSET_DROP, capability, 0, 0, 0) {
                Err(Errno::EINVAL) => break,
                dropped => dropped?,
            };
        }
        let (header, none) = ([_LINUX_CAPABILITY_VERSION_3, 0], [0_u32; 6]);
        syscall!(Sysno::capset, &raw const header, &raw const none)?;
        // Another user's process is not.
        syscall!(Sysno::prctl, PR_SET_DUMPABLE, 1, 0, 0, 0)?;
        syscall!(Sysno::setsid)?;
    }
    connect()?;
    Ok(word)
}

/// Makes the socket of a request the one from which this process gets requests, and keeps nothing else of its template.
pub(crate) fn stay(request: &Request) -> Result<(), Errno> {
    wait_for_place(request.server())?;
    // SAFETY: no memory is passed.
    unsafe {
        syscall!(Sysno::dup3, request.server(), 0, 0)?;
        syscall!(Sysno::close_range, 3, u32::MAX, 0)?;
    }
    Ok(())
}

/// Tells the server that this process is there, and waits until it has moved it. Returns the server's word.
fn wait_for_place(server: i32) -> Result<u8, Errno> {
    let mut word = 0_u8;
    // SAFETY: the byte lives as long as the calls.
    unsafe {
        syscall!(Sysno::sendto, server, c".".as_ptr(), 1, MSG_NOSIGNAL, 0, 0)?;
        loop {
            match syscall!(Sysno::read, server, &raw mut word, 1) {
                Ok(1) => return Ok(word),
                Err(Errno::EINTR) => {}
                // The server has given up.
                Ok(_) => return Err(Errno::EPIPE),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Makes the streams, and passes the other ends to the runner.
fn connect() -> Result<(), Errno> {
    let stdin = pipe()?;
    let stdout = pipe()?;
    let stderr = pipe()?;
    let mut channel = [0_i32; 2];
    // SAFETY: the kernel fills the pair.
    unsafe {
        syscall!(Sysno::socketpair, AF_UNIX, SOCK_STREAM, 0, &raw mut channel)?;
    }
    pass_on([stdin[1], stdout[0], stderr[0], channel[1]])?;
    for (from, to) in [(stdin[0], 0), (stdout[1], 1), (stderr[1], 2), (channel[0], CHANNEL)] {
        // SAFETY: no memory is passed.
        unsafe { syscall!(Sysno::dup3, from, to, 0) }?;
    }
    // SAFETY: the same.
    unsafe {
        syscall!(Sysno::close_range, 3, CHANNEL - 1, 0)?;
        syscall!(Sysno::close_range, CHANNEL + 1, u32::MAX, 0)?;
    }
    Ok(())
}

fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel fills the pair.
    unsafe { syscall!(Sysno::pipe2, &raw mut ends, 0) }?;
    Ok(ends)
}
