//! The processes in which programs are checked.
//!
//! A parser is a large program in C, and what it reads is hostile. So the server, which is often root, does not
//! parse: it starts itself again as a checker, which reads the policies and then gives up all rights. A checker
//! can't do more than read programs from its standard input and say what it found. What it says is
//! untrusted, too.

mod confine;
mod messages;
pub(super) mod process;
mod server;

pub(super) use server::Checkers;

/// The hidden subcommand that makes the binary a checker.
const SUBCOMMAND: &str = "policy-checker";

/// How many programs a checker checks before another takes its place.
const MOST_CHECKS: u32 = 256;
