//! Blocked and ignored signals, which a process inherits and passes on.
#![allow(unsafe_code)]

/// The highest signal of the kernel.
const LAST: i32 = 64;

/// A signal's action as the kernel has it: first the handler, then flags and a mask, for which zeros mean none.
type Action = [usize; 4];

/// Default and ignored, as handlers.
const DEFAULT: usize = 0;
const IGNORED: usize = 1;

/// Blocks no signal, and ignores none except those in `kept`. Returns the signals that were ignored. The process
/// must have a single thread.
pub fn reset_signals(kept: &[i32]) -> Vec<i32> {
    unblock_signals();
    let ignored: Vec<_> = ignored().collect();
    for signal in ignored.iter().filter(|signal| !kept.contains(signal)) {
        set(*signal, DEFAULT);
    }
    ignored
}

/// Blocks and ignores no signal. Allocates nothing: a process that borrows another one's memory may be killed in the middle of
/// this. The process must have a single thread.
pub fn reset_all_signals() {
    unblock_signals();
    ignored().for_each(|signal| set(signal, DEFAULT));
}

fn ignored() -> impl Iterator<Item = i32> {
    (1..=LAST).filter(|signal| is_ignored(*signal))
}

fn unblock_signals() {
    let none = 0_u64;
    // SAFETY: the kernel reads the mask, which lives as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<u64>(),
            size_of::<u64>(),
        );
    }
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    set(signal, IGNORED);
}

/// Whether a signal is ignored.
pub fn is_ignored(signal: i32) -> bool {
    let mut action: Action = [DEFAULT; 4];
    // SAFETY: the kernel writes the action, which lives as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<Action>(),
            &raw mut action,
            size_of::<u64>(),
        );
    }
    action[0] == IGNORED
}

fn set(signal: i32, handler: usize) {
    let action: Action = [handler, 0, 0, 0];
    // SAFETY: the kernel reads the action, which lives as long as the call. There is no handler to be called. For the
    // signals that can't be changed it returns an error.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            &raw const action,
            std::ptr::null_mut::<Action>(),
            size_of::<u64>(),
        );
    }
}
