//! The protocol of a fork, in one place: between the server and a template, and between the fork and the runner.
//!
//! 1. The server sends the template a request: the user and the group of the sandbox as two numbers, with
//!    [`REQUEST_DESCRIPTORS`] descriptors. The template answers with the number of the step that failed and its error, or zeros.
//! 2. The fork sends one byte over the server's socket when it is in the sandbox, and reads one when it is in its control groups:
//!    [`SPARE`] or [`AWAITED`].
//! 3. The fork connects to the runner at [`ADDRESS`] and passes [`PASSED_DESCRIPTORS`] descriptors.
//! 4. The fork and the runner talk over [`CHANNEL`], as `sitecustomize.py` says.
//!
//! A request for [`FOR_TEMPLATE`] makes a copy that is a template, too: after the byte of the second step it gets requests on that
//! socket, as soon as it has said that it is ready.
//!
//! The library in `template/` compiles this file, so it needs no `std`.
#![allow(dead_code, reason = "each crate is on one side")]

/// The library that a template loads.
pub const LIBRARY: &str = "/.isolator/preload/template.so";

/// Most bytes of what a template says when it is ready. The names of a thousand modules take about 25 KB.
pub const LONGEST_READY: usize = 60_000;

/// The number of a user that asks for another template instead of a fork in a sandbox.
pub const FOR_TEMPLATE: u32 = u32::MAX;

/// The descriptors of a request: process 1 of the sandbox, and the socket on which the fork reports to the server.
pub const REQUEST_DESCRIPTORS: usize = 2;

/// The steps of a fork, by their numbers, which begin with one.
pub const STEPS: [&str; 4] = [
    "start a process",
    "enter the sandbox's namespaces",
    "start a process in the sandbox",
    "copy the interpreter",
];

/// The server's word to a fork that waits for any program. It can prepare for that meanwhile.
pub const SPARE: u8 = b's';

/// The server's word to a fork for which a program waits, or to another template.
pub const AWAITED: u8 = b'a';

/// Where the runner listens for forks, in the abstract namespace of the sandbox's network.
pub const ADDRESS: &[u8] = b"isolator";

/// Number of descriptors that a fork passes to the runner. In this order: the other ends of its standard input, output and error, and of the channel.
pub const PASSED_DESCRIPTORS: usize = 4;

/// Number of the channel to the runner in an interpreter that was forked: above those that an interpreter opens itself, below the
/// lowest limit on open files.
pub const CHANNEL: i32 = 60;

/// The exit codes of a template and of a fork that is not a program yet.
pub mod exit_code {
    /// The library has a bug.
    pub const PANIC: i32 = 70;
    /// The server sent something else than a request.
    pub const NO_REQUEST: i32 = 71;
    /// The server did not take an answer.
    pub const NOT_ANSWERED: i32 = 72;
    /// The fork could not become what a program of the sandbox is.
    pub const NOT_SETTLED: i32 = 73;
    /// The end of the interpreter could not be made whole again.
    pub const NOT_RESTORED: i32 = 74;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_module_of_python_has_the_same_numbers() {
        let module = include_str!("../preload/python/sitecustomize.py");
        for line in [
            format!("_TEMPLATE = {:?}", super::LIBRARY),
            format!("_FORKED_CHANNEL = {}", super::CHANNEL),
            format!("_LONGEST_REPORT = {}", super::LONGEST_READY),
        ] {
            assert!(module.lines().any(|it| it == line), "{line}");
        }
    }
}
