//! The processes in which programs are checked.
//!
//! A parser is a large program in C, and its input is hostile. So the server, which is often root, does not
//! parse: it starts itself again as a checker, which reads the policies and then gives up all rights. A checker
//! can only read programs from its standard input and report violations. The server does not trust its reports.

mod confine;
mod messages;
pub(super) mod process;
mod server;

pub(super) use server::Checkers;

/// The hidden subcommand that makes the binary a checker.
const SUBCOMMAND: &str = "policy-checker";

/// Programs that a checker checks before it is replaced.
const MOST_CHECKS: u32 = 256;
