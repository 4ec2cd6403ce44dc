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
pub mod run;
pub mod serve;
mod signals;
pub mod token;

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;

use crate::config::{Config, EngineKind};

/// A running command. It is boxed so that it is compiled here: a caller that awaits a plain `async fn` compiles all
/// of it once more, which took the binary a minute.
pub type Work = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

/// Writes a line for the operator to standard output.
pub fn say(line: &str) {
    print(format!("{line}\n").as_bytes());
}

/// Writes to standard output. Everything that a command prints there goes this way.
pub(crate) fn print(bytes: &[u8]) {
    let mut output = std::io::stdout().lock();
    // A closed pipe means that the reader wants no more.
    let _ = output.write_all(bytes).and_then(|()| output.flush());
}

/// How advice calls this program: with the engine, if it was chosen on the command line.
pub(crate) fn isolator(config: &Config) -> &'static str {
    match (config.engine.is_chosen_on_command_line, config.engine.kind) {
        (true, EngineKind::Embedded) => "isolator --engine embedded",
        (true, EngineKind::Docker) => "isolator --engine docker",
        _ => "isolator",
    }
}

/// Writes a line for the operator to standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn advice_repeats_the_engine_of_the_command_line() {
        let mut config = Config::parse("{}", None, Path::new("")).unwrap();
        config.engine.kind = EngineKind::Embedded;
        assert_eq!(isolator(&config), "isolator");
        config.engine.is_chosen_on_command_line = true;
        assert_eq!(isolator(&config), "isolator --engine embedded");
    }
}
