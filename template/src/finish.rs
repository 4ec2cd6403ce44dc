//! The end of a fork, without taking its memory apart.
//!
//! When Python ends it writes to thousands of objects before it frees them, and each page that is written must be copied
//! first, because it is the template's. So once nothing more of the end can be noticed, which `sitecustomize`
//! decides, the rest of `Py_FinalizeEx` is left out. Its caller alone knows how the program ended, so it must return
//! there: a jump is written over its first instructions, to [`finalize`], which calls it and is a place to return to.
//!
//! `Py_FinalizeEx` is public and has the same type in every Python 3. The return happens in a function that it calls for `atexit`,
//! on the same thread, which holds the interpreter's lock and no other. The rest is the same as after a call of `_exit`:
//! an interpreter that is being finalized, and is not entered again because its caller returns from `main`. The
//! functions of `Py_AtExit` are not called. This was tried with CPython 3.13 of Debian on x86-64; the tests of the images show
//! whether another one does the same.

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};

use crate::holder;
use crate::mapping::write_code;
use crate::protocol::exit_code::NOT_RESTORED;

unsafe extern "C" {
    fn Py_FinalizeEx() -> c_int;
    fn PyCFunction_NewEx(
        method: *const Method,
        of: *mut c_void,
        module: *mut c_void,
    ) -> *mut c_void;
    fn PyObject_IsTrue(object: *mut c_void) -> c_int;
    fn PySys_SetObject(name: *const c_char, value: *mut c_void) -> c_int;
    /// Calls a function, and returns what it returns or what is passed to [`isolator_return`] meanwhile.
    fn isolator_call(function: unsafe extern "C" fn() -> c_int, place: *mut usize) -> c_int;
    /// Returns from [`isolator_call`].
    fn isolator_return(place: usize, value: c_int) -> !;
}

/// The stack pointer in [`isolator_call`]; zero outside it.
static mut PLACE: usize = 0;

/// The instructions that the jump has replaced.
static mut ORIGINAL: [u8; JUMP.len()] = [0; JUMP.len()];

/// Loads the address behind it, and jumps there: `jmp [rip]` on x86-64; `ldr x16, #8` and `br x16` on AArch64, where functions
/// may use that register between calls. The last eight bytes are the address.
#[cfg(target_arch = "x86_64")]
const JUMP: [u8; 14] = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
#[cfg(target_arch = "aarch64")]
const JUMP: [u8; 16] = [0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes `Py_FinalizeEx` one that can be left. In a template, so that its forks share the page.
pub(crate) fn prepare() {
    let mut jump = JUMP;
    let address = (finalize as unsafe extern "C" fn() -> c_int as usize).to_ne_bytes();
    let at = JUMP.len() - address.len();
    jump[at..].copy_from_slice(&address);
    let function =
        (Py_FinalizeEx as unsafe extern "C" fn() -> c_int as *mut u8).cast::<[u8; JUMP.len()]>();
    // SAFETY: the interpreter's only thread is here, and a function is longer than a jump. Where it must not be
    // written the end takes longer.
    unsafe {
        ORIGINAL = function.read_unaligned();
        let _ = write_code(function, jump);
    }
}

/// Called instead of `Py_FinalizeEx`.
unsafe extern "C" fn finalize() -> c_int {
    let function = (Py_FinalizeEx as unsafe extern "C" fn() -> c_int as *mut u8).cast();
    // SAFETY: as in `prepare`. The place is in this frame as long as it is set.
    unsafe {
        if write_code(function, ORIGINAL).is_err() {
            crate::call::exit(NOT_RESTORED);
        }
        let status = isolator_call(Py_FinalizeEx, &raw mut PLACE);
        PLACE = 0;
        status
    }
}

/// A function that Python can call, as it declares one.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void,
    flags: c_int,
    doc: *const c_char,
}

// SAFETY: it is never written.
unsafe impl Sync for Method {}

static LEAVE: Method =
    Method { name: c"leave".as_ptr(), function: leave, flags: METH_O, doc: null() };

const METH_O: c_int = 8;

/// Gives Python the function that leaves the end of the interpreter.
pub(crate) fn offer() {
    holder::prepare();
    // SAFETY: the interpreter's only thread is here.
    unsafe {
        let function = PyCFunction_NewEx(&raw const LEAVE, null_mut(), null_mut());
        PySys_SetObject(c"_isolator_leave".as_ptr(), function);
    }
}

/// Called by Python with whether this process has much memory: the end of the interpreter is over. Returns an error if it has not begun.
unsafe extern "C" fn leave(_: *mut c_void, has_much_memory: *mut c_void) -> *mut c_void {
    // SAFETY: the place is set only while its frame is there, and Python passes an object.
    unsafe {
        if PLACE != 0 {
            if PyObject_IsTrue(has_much_memory) == 1 {
                holder::make();
            }
            isolator_return(PLACE, 0);
        }
    }
    null_mut()
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl isolator_call",
    ".hidden isolator_call",
    "isolator_call:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rsi], rsp",
    "call rdi",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".globl isolator_return",
    ".hidden isolator_return",
    "isolator_return:",
    "mov rsp, rdi",
    "mov eax, esi",
    "jmp 2b",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl isolator_call",
    ".hidden isolator_call",
    "isolator_call:",
    "stp x29, x30, [sp, #-160]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "mov x9, sp",
    "str x9, [x1]",
    "blr x0",
    "2:",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160",
    "ret",
    ".globl isolator_return",
    ".hidden isolator_return",
    "isolator_return:",
    "mov sp, x0",
    "mov w0, w1",
    "b 2b",
);
