//! The process that holds the memory of a program that has ended.
//!
//! The kernel frees the memory of a process before it reports the end of the process: 4 ms for an interpreter
//! with pandas. It does not free memory that another process shares. So at the end of a program a second process is
//! made that does nothing. It is killed with the sandbox, when the answer is on its way.

use core::arch::global_asm;
use core::ptr::null;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use linux_raw_sys::general::{
    CLONE_PARENT, CLONE_VM, FUTEX_WAIT, SIG_BLOCK, SIG_SETMASK, SIGCHLD, timespec,
};

use crate::call::{Sysno, syscall};

/// The fork itself. The processes that its program forks may end like it, but the program would find their holders among
/// its children.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// One once the holder has closed the streams that it was born with. Otherwise their readers would wait for it.
static IS_READY: AtomicU32 = AtomicU32::new(0);

/// How long its start may take, in nanoseconds. It takes some microseconds on a free core.
const START_TIMEOUT: i64 = 20_000_000;

/// The length of a signal mask, in bytes.
const MASK: usize = 8;

unsafe extern "C" {
    /// Makes a process with this one's memory that closes its descriptors, writes a one, wakes the process that waits for it, and sleeps.
    /// It never touches the stack, which it shares. Returns its number, or an error below zero.
    fn isolator_hold(flags: usize, is_ready: *const AtomicU32) -> isize;
}

/// Remembers that this process is a fork.
pub(crate) fn prepare() {
    // SAFETY: no memory is passed.
    let pid = unsafe { syscall!(Sysno::getpid) }.unwrap_or_default();
    OWNER.store(pid as i32, Ordering::Relaxed);
}

/// Makes the holder, if this process is the fork itself. Without it the end takes longer, which does no harm.
pub(crate) fn make() {
    // SAFETY: no memory is passed.
    let pid = unsafe { syscall!(Sysno::getpid) }.unwrap_or_default();
    if pid as i32 != OWNER.load(Ordering::Relaxed) {
        return;
    }
    // A handler of a signal would run in shared memory.
    let (all, mut before) = (u64::MAX, 0_u64);
    // A child of the sandbox's process 1.
    let flags = (CLONE_VM | CLONE_PARENT | SIGCHLD) as usize;
    let limit = timespec { tv_sec: 0, tv_nsec: START_TIMEOUT };
    // SAFETY: the masks, the limit and the word live as long as the calls. The other process reads and writes nothing but the
    // word.
    unsafe {
        if syscall!(Sysno::rt_sigprocmask, SIG_BLOCK, &raw const all, &raw mut before, MASK)
            .is_err()
        {
            return;
        }
        if isolator_hold(flags, &raw const IS_READY) > 0 {
            while IS_READY.load(Ordering::Acquire) == 0 {
                let waited =
                    syscall!(Sysno::futex, IS_READY.as_ptr(), FUTEX_WAIT, 0, &raw const limit);
                if waited == Err(crate::call::Errno::ETIMEDOUT) {
                    break;
                }
            }
        }
        let _ =
            syscall!(Sysno::rt_sigprocmask, SIG_SETMASK, &raw const before, null::<u64>(), MASK);
    }
}

// In the child: close_range(0, MAX, 0); *is_ready = 1; futex(is_ready, FUTEX_WAKE, 1); and pause() for ever.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl isolator_hold",
    ".hidden isolator_hold",
    "isolator_hold:",
    "mov r9, rsi",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 3f",
    "mov eax, 436",
    "xor edi, edi",
    "mov esi, -1",
    "xor edx, edx",
    "syscall",
    "mov dword ptr [r9], 1",
    "mov eax, 202",
    "mov rdi, r9",
    "mov esi, 1",
    "mov edx, 1",
    "syscall",
    "2:",
    "mov eax, 34",
    "syscall",
    "jmp 2b",
    "3:",
    "ret",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl isolator_hold",
    ".hidden isolator_hold",
    "isolator_hold:",
    "mov x9, x1",
    "mov x8, #220",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "mov x4, xzr",
    "svc #0",
    "cbnz x0, 3f",
    "mov x8, #436",
    "mov x0, xzr",
    "mov w1, #-1",
    "mov x2, xzr",
    "svc #0",
    "mov w1, #1",
    "str w1, [x9]",
    "mov x8, #98",
    "mov x0, x9",
    "mov x1, #1",
    "mov x2, #1",
    "svc #0",
    "2:",
    "mov x8, #73",
    "mov x0, xzr",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "svc #0",
    "b 2b",
    "3:",
    "ret",
);
