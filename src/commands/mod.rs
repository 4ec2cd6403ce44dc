//! The commands, one file each.

pub mod bench;
pub mod cli;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod gc;
mod hosts;
pub mod image;
pub mod install;
pub mod man;
mod notify;
mod operators;
mod options;
pub mod packages;
mod print;
mod program_output;
pub mod reload;
pub mod run;
mod sent_files;
pub mod serve;
pub mod session;
mod signals;
pub mod status;
mod steps;
pub mod token;
pub mod tune;
mod wanted_sets;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;

pub use self::print::{complain, print, print_usage};
pub(crate) use self::print::{print_to_stderr, require_output, say};
use crate::config::{Config, EngineKind};

/// A running command. It is boxed so that it is compiled here: a caller that awaits a plain `async fn` compiles all
/// of it once more, which took the binary a minute.
pub type Work = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

/// How advice calls this program: with the engine that is used, unless the configuration names it, and with the
/// configuration that was given on the command line. `used` is never [`EngineKind::Auto`].
pub(crate) fn isolator(config: &Config, used: EngineKind) -> String {
    let mut call = isolator_with_file(config);
    let is_named = config.engine.kind == used && !config.engine.is_chosen_on_command_line;
    match used {
        EngineKind::Embedded if !is_named => call.push_str(" --engine embedded"),
        EngineKind::Docker if !is_named => call.push_str(" --engine docker"),
        _ => {}
    }
    call
}

/// How advice calls this program for what needs no engine.
pub(crate) fn isolator_with_file(config: &Config) -> String {
    match config.file.as_ref().filter(|_| config.is_file_chosen_on_command_line) {
        Some(file) => format!("isolator --config {}", file.display()),
        None => "isolator".to_owned(),
    }
}

/// An error with its causes, in plain words where the operating system has others.
pub fn told(error: &anyhow::Error) -> String {
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
    let text = format!("{error:#}");
    WORDS.into_iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn advice_names_the_engine_that_is_used_and_the_file() {
        use EngineKind::{Docker, Embedded};
        let mut config = Config::parse("{}", Some("my.json".into()), Path::new("")).unwrap();
        assert_eq!(isolator(&config, Docker), "isolator --engine docker");
        config.engine.kind = Embedded;
        assert_eq!(isolator(&config, Embedded), "isolator");
        config.engine.is_chosen_on_command_line = true;
        config.is_file_chosen_on_command_line = true;
        assert_eq!(isolator(&config, Embedded), "isolator --config my.json --engine embedded");
    }
}
