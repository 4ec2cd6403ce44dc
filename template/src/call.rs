//! System calls. The wrappers of the image's C library are not used, because it may lack some.

use core::arch::global_asm;
use core::ffi::c_int;

pub(crate) use syscalls::{Errno, Sysno, syscall};

/// Ends the process.
pub(crate) fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { syscall!(Sysno::exit_group, code) };
    }
}

unsafe extern "C" {
    /// Calls a function in a new process that borrows this one's memory, while this one stands still. Returns its number, or an
    /// error below zero. If the function returns anything but zero it is a copy that goes on, and this returns zero.
    fn isolator_borrow(function: extern "C" fn(*mut ()) -> c_int, argument: *mut ()) -> isize;
}

/// Calls a function in a child that borrows this process's memory, and waits until the child has ended. `None` in a copy that
/// the function has made, and for which it has returned true.
pub(crate) fn in_child<T>(
    function: extern "C" fn(*mut ()) -> c_int,
    argument: &mut T,
) -> Option<Result<(), Errno>> {
    // SAFETY: the child only goes deeper in the stack than this frame, and this process stands still meanwhile.
    let pid = unsafe { isolator_borrow(function, (&raw mut *argument).cast()) };
    match pid {
        0 => None,
        1.. => {
            // SAFETY: no memory is passed.
            let reaped = unsafe { syscall!(Sysno::wait4, pid, 0, 0, 0) };
            Some(reaped.map(|_| ()))
        }
        error => Some(Err(Errno::new(-error as i32))),
    }
}

// The flags are CLONE_VM | CLONE_VFORK | SIGCHLD. What the child pushes lies below what the parent will need again.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl isolator_borrow",
    ".hidden isolator_borrow",
    "isolator_borrow:",
    "push rbx",
    "push rbp",
    "sub rsp, 8",
    "mov rbx, rdi",
    "mov rbp, rsi",
    "mov eax, 56",
    "mov edi, 0x4111",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "mov rdi, rbp",
    "call rbx",
    "test eax, eax",
    "mov eax, 0",
    "jnz 2f",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    "2:",
    "add rsp, 8",
    "pop rbp",
    "pop rbx",
    "ret",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl isolator_borrow",
    ".hidden isolator_borrow",
    "isolator_borrow:",
    "stp x29, x30, [sp, #-32]!",
    "stp x19, x20, [sp, #16]",
    "mov x19, x0",
    "mov x20, x1",
    "mov x8, #220",
    "mov x0, #0x4111",
    "mov x1, xzr",
    "mov x2, xzr",
    "mov x3, xzr",
    "mov x4, xzr",
    "svc #0",
    "cbnz x0, 2f",
    "mov x0, x20",
    "blr x19",
    "mov w1, w0",
    "mov x0, xzr",
    "cbnz w1, 2f",
    "mov x8, #94",
    "svc #0",
    "2:",
    "ldp x19, x20, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    "ret",
);
