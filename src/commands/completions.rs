//! `isolator completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::commands::print;

/// Prints a shell's completions.
pub fn completions(mut program: Command, shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "isolator", &mut script);
    print(&script)?;
    Ok(ExitCode::SUCCESS)
}
