//! Processes that borrow the launcher's memory.
//!
//! Such a process costs the same whatever memory the launcher has: nothing is copied. The one that made it stands still until it
//! has started another program or has ended, so both may use the same values. It has a stack of its own.

use std::arch::asm;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};
use syscalls::{Sysno, syscall};

// Flags of `linux/sched.h`, beside those of namespaces.
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_FILES: u64 = 0x400;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_PARENT_SETTID: u64 = 0x0010_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: u64 = 17;

/// `struct clone_args`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The code of a process. It does not return.
pub(super) type Code = extern "C" fn(*mut c_void) -> !;

/// A stack, with a page below it that can't be used.
pub(super) struct Stack(usize);

impl Stack {
    const SIZE: usize = 128 << 10;
    const GUARD: usize = 64 << 10;

    #[allow(unsafe_code)]
    pub(super) fn new() -> io::Result<Self> {
        const READ_AND_WRITE: usize = 3;
        const PRIVATE_ANONYMOUS: usize = 0x22;
        let failed = |error: syscalls::Errno| io::Error::from_raw_os_error(error.into_raw());
        // SAFETY: this is new memory, which nothing else knows. It is never unmapped.
        unsafe {
            let stack = syscall!(
                Sysno::mmap,
                0,
                Self::SIZE,
                READ_AND_WRITE,
                PRIVATE_ANONYMOUS,
                usize::MAX,
                0
            )
            .map_err(failed)?;
            syscall!(Sysno::mprotect, stack, Self::GUARD, 0).map_err(failed)?;
            Ok(Self(stack))
        }
    }
}

/// What the kernel says about a new process, before it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Born {
    /// Its number, or 0.
    pub(super) pid: i32,
    /// A descriptor of it.
    pub(super) pidfd: i32,
}

/// Runs code in a child that has this process's memory and descriptors, and in a group of version 2 if there is one. Returns
/// when it has ended, or has started another program.
///
/// # Safety
///
/// The stack must not be in use. What the code does must be right for this process, too, whose values it sees.
#[allow(unsafe_code)]
pub(super) unsafe fn child(
    stack: &Stack,
    group: Option<BorrowedFd<'_>>,
    code: Code,
    argument: *mut c_void,
) -> io::Result<Pid> {
    let mut arguments = CloneArguments {
        flags: CLONE_VM | CLONE_VFORK | CLONE_FILES,
        exit_signal: SIGCHLD,
        ..CloneArguments::default()
    };
    if let Some(group) = group {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: the caller's.
    let pid = unsafe { clone(&mut arguments, stack, code, argument) }?;
    Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Runs code in a process in new namespaces that has this process's memory, a copy of its descriptors, and the same parent.
/// Returns when it has ended, or has started another program. `born` is written before it begins.
///
/// # Safety
///
/// As with [`child`].
#[allow(unsafe_code)]
pub(super) unsafe fn sibling(
    stack: &Stack,
    namespaces: u64,
    born: *mut Born,
    code: Code,
    argument: *mut c_void,
) -> io::Result<()> {
    let flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_PIDFD | CLONE_PARENT_SETTID;
    // SAFETY: the caller's; and `born` is valid.
    unsafe {
        let mut arguments = CloneArguments {
            flags: flags | namespaces,
            pidfd: (&raw mut (*born).pidfd) as u64,
            parent_tid: (&raw mut (*born).pid) as u64,
            ..CloneArguments::default()
        };
        clone(&mut arguments, stack, code, argument).map(|_| ())
    }
}

#[allow(unsafe_code)]
unsafe fn clone(
    arguments: &mut CloneArguments,
    stack: &Stack,
    code: Code,
    argument: *mut c_void,
) -> io::Result<i32> {
    arguments.stack = stack.0 as u64;
    arguments.stack_size = Stack::SIZE as u64;
    let result: isize;
    // SAFETY: the child goes on here with its own stack, and only calls the code, which does not return. This process goes on
    // when the child needs neither its memory nor the stack anymore.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") 435_isize => result,
            in("rdi") arguments,
            in("rsi") size_of::<CloneArguments>(),
            in("r12") code,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk 1",
            "2:",
            in("x8") 435_isize,
            inlateout("x0") arguments => result,
            in("x1") size_of::<CloneArguments>(),
            in("x20") code,
            in("x21") argument,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as i32) }
}

/// Lets no process read this memory, or enter the namespaces of a process that has it, but one with rights over the launcher. The
/// owner of a sandbox's user namespace must not get in while the machine's files are there. The kernel does the same when a process
/// becomes another user, unless the machine is set to debug such processes (`fs.suid_dumpable`).
pub(super) fn close_memory() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Ends this process, and nothing else of it.
#[allow(unsafe_code)]
pub(super) fn exit() -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { syscall!(Sysno::exit_group, 0) };
    }
}
