//! The second process of a sandbox, which is its process 1: from new namespaces to its program.

use std::convert::Infallible;
use std::ffi::{CStr, c_void};

use isolator_runner::inherited;
use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::{Errno, write};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Uid, fchdir, pivot_root, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::BpfProgram;
use syscalls::{Sysno, syscall};

use super::attempt::{Attempt, Step};
use super::borrowed;
use super::files::{self, Sources};
use super::ready::Ready;
use crate::engine::embedded::launcher::{loopback, mounting};
use crate::engine::embedded::layout::ROOT;
use crate::engine::embedded::plan::{ResourceLimit, Role};

/// The code of the process.
#[allow(unsafe_code)]
pub(super) extern "C" fn run(attempt: *mut c_void) -> ! {
    // SAFETY: the first process passes this, and it and the launcher stand still.
    let attempt = unsafe { &*attempt.cast::<Attempt<'_>>() };
    let Err(error) = become_program(attempt);
    attempt.fail(error);
    borrowed::exit()
}

fn become_program(attempt: &Attempt<'_>) -> Result<Infallible, Errno> {
    let ready = attempt.ready;
    attempt.begin(Step::Session)?;
    setsid()?;
    set_no_new_privs(true)?;
    attempt.begin(Step::HostName)?;
    set_host_name(&ready.host_name)?;
    if ready.role != Role::Template {
        attempt.begin(Step::Loopback)?;
        loopback::bring_up()?;
    }
    enter_root(attempt)?;

    attempt.begin(Step::Directory)?;
    fchdir(files::find(&ready.root, &ready.directory)?)?;
    attempt.begin(Step::Streams)?;
    let [input, output, errors] = &ready.streams;
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(errors)?;
    close_others_with_exec()?;
    attempt.begin(Step::Limits)?;
    ready.limits.iter().try_for_each(set_limit)?;
    give_up_rights(attempt)?;
    attempt.begin(Step::Filter)?;
    // Programs ignore none of the signals that the launcher ignores.
    inherited::reset_all_signals();
    attempt.maker.filter(ready.role).iter().try_for_each(load_filter)?;
    attempt.begin(Step::Start)?;
    Err(start(ready))
}

/// Makes the sandbox's files its only ones.
fn enter_root(attempt: &Attempt<'_>) -> Result<(), Errno> {
    let ready = attempt.ready;
    // While the machine's files are there: the kernel allows a new `/proc` and `/sys` only to those that see one.
    let sources = Sources::make(attempt)?;
    if ready.role == Role::Template {
        attempt.begin(Step::Limits)?;
        be_killed_early()?;
    }
    attempt.begin(Step::Root)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let machine = open(c"/", flags, Mode::empty())?;
    mounting::place(&ready.root, open(ROOT, flags, Mode::empty())?)?;
    fchdir(&ready.root)?;
    pivot_root(c".", c".")?;
    attempt.begin(Step::OldRoot)?;
    // It lies over the new one.
    fchdir(&machine)?;
    unmount(c".", UnmountFlags::DETACH)?;
    drop(machine);
    fchdir(&ready.root)?;
    // From here on, nothing of the machine can be reached by a path, wherever a hostile image leads it.
    sources.place(attempt)
}

#[allow(unsafe_code)]
fn set_host_name(name: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads the name, which lives as long as the call.
    call(unsafe { syscall!(Sysno::sethostname, name.as_ptr(), name.count_bytes()) })
}

/// When memory runs out, the kernel kills a template before the server.
fn be_killed_early() -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let score = openat(CWD, c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    write(score, b"500").map(|_| ())
}

/// No descriptor but the standard streams stays open in the program. All were opened so; this is for one that was forgotten.
#[allow(unsafe_code)]
fn close_others_with_exec() -> Result<(), Errno> {
    const FIRST: usize = 3;
    const CLOSE_RANGE_CLOEXEC: usize = 4;
    // SAFETY: no memory is passed.
    call(unsafe { syscall!(Sysno::close_range, FIRST, u32::MAX, CLOSE_RANGE_CLOEXEC) })
}

#[allow(unsafe_code)]
fn set_limit(limit: &ResourceLimit) -> Result<(), Errno> {
    let values = [limit.soft, limit.hard];
    // SAFETY: the kernel reads the two values, which live as long as the call.
    call(unsafe { syscall!(Sysno::prlimit64, 0, limit.resource, &raw const values, 0) })
}

/// Becomes the program's user, with no capability but those of the plan.
fn give_up_rights(attempt: &Attempt<'_>) -> Result<(), Errno> {
    let ready = attempt.ready;
    let kept = CapabilitySet::from_bits_retain(ready.capabilities);
    attempt.begin(Step::Capabilities)?;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if !kept.contains(capability) {
            match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // The kernel has no more.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error),
            }
        }
    }
    clear_ambient_capability_set()?;
    attempt.begin(Step::User)?;
    let (uid, gid) = (Uid::from_raw(ready.user.0), Gid::from_raw(ready.user.1));
    set_keep_capabilities(false)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    borrowed::close_memory()?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })
}

#[allow(unsafe_code)]
fn load_filter(filter: &BpfProgram) -> Result<(), Errno> {
    /// `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const seccompiler::sock_filter,
    }
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let length = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = Program { length, instructions: filter.as_ptr() };
    // SAFETY: the kernel reads the program and its instructions, which live as long as the call.
    call(unsafe { syscall!(Sysno::seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// Starts the first of the programs that is there. Returns only an error.
#[allow(unsafe_code)]
fn start(ready: &Ready) -> Errno {
    let mut error = Errno::NOENT;
    for path in &ready.program {
        let (arguments, variables) = (ready.arguments.as_ptr(), ready.variables.as_ptr());
        // SAFETY: the kernel reads the strings, which live as long as the call. The lists end with a null.
        match call(unsafe { syscall!(Sysno::execve, path.as_ptr(), arguments, variables) }) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::ACCESS) => error = Errno::ACCESS,
            Err(other) => return other,
            Ok(()) => return Errno::IO,
        }
    }
    error
}

fn call(result: Result<usize, syscalls::Errno>) -> Result<(), Errno> {
    result.map(|_| ()).map_err(|error| Errno::from_raw_os_error(error.into_raw()))
}
