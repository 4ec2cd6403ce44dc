//! `isolator completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::commands::cli::Cli;

/// Prints a shell's completions.
pub fn completions(shell: Shell) -> ExitCode {
    clap_complete::generate(shell, &mut Cli::command(), "isolator", &mut std::io::stdout());
    ExitCode::SUCCESS
}
