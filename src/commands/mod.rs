//! The commands, one file each.

mod advice;
mod backend;
pub mod cli;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod drain;
pub mod gc;
pub mod global;
mod hosts;
pub mod image;
pub mod install;
pub mod man;
mod notify;
mod operators;
pub mod options;
mod own_calls;
pub mod packages;
mod print;
mod program_output;
pub mod reload;
pub mod run;
mod sent_files;
pub mod serve;
pub mod server;
pub mod session;
pub mod signals;
pub mod status;
mod steps;
pub mod token;
pub mod tune;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;

use isolator_pool::error_chain::error_chain;

pub use self::advice::isolator;
pub use self::print::{complain, print, print_usage, say};
pub(crate) use self::print::{print_to_stderr, require_output};

/// A running command. It is boxed so that it is compiled here: a caller that awaits a plain `async fn` compiles all
/// of it once more, which took the binary a minute.
pub type Work = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

/// An error with its causes, in plain words where the operating system has others.
pub fn describe(error: &anyhow::Error) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("No such file or directory (os error 2)", "there is no such file or folder"),
        ("Permission denied (os error 13)", "this user has no permission to do this"),
        ("Not a directory (os error 20)", "this is a file, not a folder"),
        ("No space left on device (os error 28)", "the disk is full"),
        (
            "File too large (os error 27)",
            "the file is longer than this process may write (ulimit -f)",
        ),
    ];
    let text = error_chain(error.as_ref());
    WORDS.into_iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
}
