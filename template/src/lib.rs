//! Forks of an interpreter that has imported modules, each inside a sandbox.
//!
//! Python loads this as a module and so gives it the process. It waits for requests of the server. For each it
//! forks the interpreter into the sandbox that the request names, and the import ends there; in the template itself
//! it never does. Nothing here allocates or takes a lock, because the memory is the interpreter's. Only the last of the
//! three processes that a fork takes is a copy:
//!
//! 1. The first enters the namespaces of the sandbox. It borrows the template's memory, and the template
//!    stands still meanwhile.
//! 2. The second is the first one's child and so the first inside the sandbox's process namespace. It borrows the memory, too.
//! 3. The third is a copy, made by the C library. The second one ends, so its parent is the sandbox's process 1. It tells the server
//!    that it is there, and waits until the server has moved it into the control groups of the sandbox.
//!
//! A request may also ask for another template: a copy that stays where it is, imports more, and serves requests on a socket of its
//! own. The second of the three processes is left out then.
#![no_std]
#![allow(unsafe_code, reason = "it is the C side of an interpreter")]

mod call;
mod finish;
mod fork;
mod holder;
mod mapping;
#[path = "../../runner/src/fork.rs"]
mod protocol;
mod sandbox;
mod socket;

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

unsafe extern "C" {
    // Called by `os.fork` before and after.
    fn PyOS_BeforeFork();
    fn PyOS_AfterFork_Parent();
    fn PyOS_AfterFork_Child();
    fn fflush(stream: *mut c_void) -> c_int;
    fn PyBool_FromLong(value: c_long) -> *mut c_void;
    fn PySys_SetObject(name: *const c_char, value: *mut c_void) -> c_int;
}

/// Called by Python before it says that it is ready: an interpreter that lacks something that this library calls can't load it.
/// Returns null, so that there is no module.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit_isolator_loads() -> *mut c_void {
    // The buffers of C are copied into each fork, too.
    // SAFETY: without a stream it means all of them.
    unsafe { fflush(null_mut()) };
    null_mut()
}

/// Called by Python for the import. Returns null in each fork, which Python takes for an error, so that there is no module.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit_isolator_template() -> *mut c_void {
    mapping::forget_file();
    finish::prepare();
    serve()
}

/// The same for a template that is a copy of another one, and has its library in the state in which that one has left it.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit_isolator_copied_template() -> *mut c_void {
    serve()
}

/// Serves the requests of the server. Returns in each copy.
fn serve() -> *mut c_void {
    while let Some(request) = socket::receive() {
        // SAFETY: this is called by the interpreter, on its only thread.
        unsafe { PyOS_BeforeFork() };
        let forked = if request.is_for_template() {
            fork::copy_template(&request)
        } else {
            fork::into_sandbox(&request)
        };
        let failed = match forked {
            Ok(fork::Side::Template) => None,
            Err(failed) => Some(failed),
            Ok(copy) => {
                // SAFETY: the same.
                unsafe { PyOS_AfterFork_Child() };
                if let fork::Side::Sandbox(word) = copy {
                    finish::offer();
                    tell_python(word == protocol::AWAITED);
                }
                return null_mut();
            }
        };
        // SAFETY: the same.
        unsafe { PyOS_AfterFork_Parent() };
        socket::answer(request, failed);
    }
    call::exit(0)
}

/// Lets `sitecustomize` know whether a program waits for this fork. Without that word it is another template.
fn tell_python(is_awaited: bool) {
    // SAFETY: the interpreter's only thread is here. A failure is one that Python notices: it looks for the name.
    unsafe {
        PySys_SetObject(c"_isolator_is_awaited".as_ptr(), PyBool_FromLong(is_awaited.into()))
    };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    call::exit(protocol::exit_code::PANIC)
}

/// `core` was compiled to call this when it unwinds, which never happens.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}
