//! The commands, one a file.

pub mod bench;
pub mod cli;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod gc;
pub mod hosts;
pub mod image;
pub mod install;
pub mod run;
pub mod serve;
mod signals;
pub mod token;

use std::io::Write;

/// Writes a line for the operator to standard output.
pub fn say(line: &str) {
    // A closed pipe means that nobody reads, which is the reader's choice.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes a line for the operator to standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
