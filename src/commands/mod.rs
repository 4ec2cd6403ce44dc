//! The commands, one a file.

pub mod bench;
pub mod cli;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod gc;
mod hosts;
pub mod image;
pub mod install;
pub mod run;
pub mod serve;
mod signals;
pub mod token;

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;

/// A command at work. It is boxed so that it is compiled here: a caller that awaits a plain `async fn` compiles all
/// of it once more, which took the binary a minute.
pub type Work = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

/// Writes a line for the operator to standard output.
pub fn say(line: &str) {
    // A closed pipe means that nobody reads, which is the reader's choice.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes a line for the operator to standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
