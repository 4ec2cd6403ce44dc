//! The three processes of a fork.

use core::ffi::c_int;

use linux_raw_sys::general::{
    CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
    CLONE_NEWUTS,
};

use crate::call::{Errno, Sysno, exit, in_child, syscall};
use crate::protocol::exit_code::NOT_SETTLED;
use crate::sandbox;
use crate::socket::{Failed, Request};

/// The process in which a fork returns.
pub(crate) enum Side {
    Template,
    /// With the server's word to the fork.
    Sandbox(u8),
    /// Another template.
    Copy,
}

/// All namespaces of a sandbox. The filter of system calls lets a template enter exactly these, together.
const NAMESPACES: u32 = CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNS
    | CLONE_NEWNET
    | CLONE_NEWIPC
    | CLONE_NEWUTS
    | CLONE_NEWCGROUP;

unsafe extern "C" {
    /// The C library's, so that its own data about the process is right in the copy.
    fn fork() -> c_int;
}

/// State that the processes share. They run one after the other.
struct Attempt<'a> {
    request: &'a Request,
    failed: Option<Failed>,
    word: u8,
}

/// Forks this process into a sandbox. Returns on both sides.
pub(crate) fn into_sandbox(request: &Request) -> Result<Side, Failed> {
    let mut attempt = Attempt { request, failed: None, word: 0 };
    match in_child(enter, &mut attempt) {
        None => Ok(Side::Sandbox(attempt.word)),
        Some(result) => {
            result.map_err(Failed::at(1))?;
            attempt.failed.map_or(Ok(Side::Template), Err)
        }
    }
}

/// Makes a copy of this process that becomes a template, too. Returns on both sides.
pub(crate) fn copy_template(request: &Request) -> Result<Side, Failed> {
    let mut attempt = Attempt { request, failed: None, word: 0 };
    // The copy has no parent here that would have to wait for its end.
    match in_child(copy_outside, &mut attempt) {
        None => Ok(Side::Copy),
        Some(result) => {
            result.map_err(Failed::at(3))?;
            attempt.failed.map_or(Ok(Side::Template), Err)
        }
    }
}

/// The first process of a copy that stays outside.
extern "C" fn copy_outside(attempt: *mut ()) -> c_int {
    // SAFETY: `copy_template` passes this and stands still.
    let attempt = unsafe { &mut *attempt.cast::<Attempt<'_>>() };
    // SAFETY: the process has a single thread.
    match unsafe { fork() } {
        0 => match sandbox::stay(attempt.request) {
            Ok(()) => 1,
            Err(_) => exit(NOT_SETTLED),
        },
        ..0 => {
            attempt.failed = Some(Failed::at(4)(Errno::EAGAIN));
            0
        }
        _ => 0,
    }
}

/// The first process: outside, on its way in.
extern "C" fn enter(attempt: *mut ()) -> c_int {
    // SAFETY: `into_sandbox` passes this and stands still.
    let attempt = unsafe { &mut *attempt.cast::<Attempt<'_>>() };
    // SAFETY: no memory is passed.
    let entered = unsafe { syscall!(Sysno::setns, attempt.request.process(), NAMESPACES) };
    if let Err(error) = entered {
        attempt.failed = Some(Failed::at(2)(error));
        return 0;
    }
    match in_child(copy, attempt) {
        None => 1,
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            attempt.failed = Some(Failed::at(3)(error));
            0
        }
    }
}

/// The second process: inside, but the child of one outside.
extern "C" fn copy(attempt: *mut ()) -> c_int {
    // SAFETY: `enter` passes this and stands still.
    let attempt = unsafe { &mut *attempt.cast::<Attempt<'_>>() };
    // SAFETY: the process has a single thread.
    match unsafe { fork() } {
        0 => match sandbox::settle(attempt.request) {
            Ok(word) => {
                attempt.word = word;
                1
            }
            // The runner sees that its end of a pipe is closed.
            Err(_) => exit(NOT_SETTLED),
        },
        ..0 => {
            attempt.failed = Some(Failed::at(4)(Errno::EAGAIN));
            0
        }
        _ => 0,
    }
}
