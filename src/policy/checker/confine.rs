//! Gives up every right that a checker does not need.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getrlimit, getuid, set_dumpable_behavior,
    setrlimit,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use syscalls::{Sysno, syscall};

/// The user and group that own nothing.
const NOBODY: u32 = 65_534;

/// Bytes of memory. The largest hostile program takes a tenth of it.
const MEMORY: u64 = 1 << 30;

/// Seconds of CPU time for all programs of a checker. Each has two.
const CPU_TIME: u64 = 600;

/// System calls for reading programs, computing, and ending.
const CALLS: [Sysno; 17] = [
    Sysno::read,
    Sysno::write,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::brk,
    Sysno::madvise,
    Sysno::futex,
    Sysno::clock_gettime,
    Sysno::getrandom,
    Sysno::sched_yield,
    Sysno::sigaltstack,
    Sysno::rt_sigreturn,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigaction,
    Sysno::restart_syscall,
    Sysno::exit,
    Sysno::exit_group,
];

/// System calls that are also needed, but not for memory that can be executed.
const CALLS_FOR_MEMORY: [Sysno; 2] = [Sysno::mmap, Sysno::mprotect];

/// The argument of these calls with the protection of memory.
const PROTECTION: u8 = 2;

const PROT_EXEC: u64 = 4;

/// Leaves the process with three open files, no user, bounded memory and time, and a few system calls. Any other ends
/// it.
pub(super) fn give_up_rights() -> io::Result<()> {
    close_other_files()?;
    for (resource, limit) in [
        (Resource::As, MEMORY),
        (Resource::Cpu, CPU_TIME),
        (Resource::Fsize, 0),
        // For a limit of one, the kernel starts no program that handles core dumps.
        (Resource::Core, 1),
    ] {
        // The server may have been started with a lower limit.
        let limit = getrlimit(resource).maximum.map_or(limit, |own| own.min(limit));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    if getuid().is_root() {
        become_nobody()?;
    }
    // Other processes can't read this one's memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    seccompiler::apply_filter(&filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

/// Closes files of the server, which may have inherited some.
#[allow(unsafe_code)]
fn close_other_files() -> io::Result<()> {
    const FIRST: u32 = 3;
    // SAFETY: this process has opened nothing itself.
    let closed = unsafe { syscall!(Sysno::close_range, FIRST, u32::MAX, 0) };
    closed.map(|_| ()).map_err(|error| io::Error::from_raw_os_error(error.into_raw()))
}

/// The capabilities go with the last user that is root.
fn become_nobody() -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.into_iter().map(|call| (i64::from(call.id()), Vec::new())).collect();
    for call in CALLS_FOR_MEMORY {
        let operator = SeccompCmpOp::MaskedEq(PROT_EXEC);
        let is_data = SeccompCondition::new(PROTECTION, SeccompCmpArgLen::Dword, operator, 0)?;
        calls.insert(call.id().into(), vec![SeccompRule::new(vec![is_data])?]);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, SeccompAction::KillProcess, SeccompAction::Allow, architecture)?
        .try_into()
}
