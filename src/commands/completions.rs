//! `isolator completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::commands::cli::Cli;
use crate::commands::print;

/// Prints a shell's completions.
pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "isolator", &mut script);
    print(&script)?;
    Ok(ExitCode::SUCCESS)
}
