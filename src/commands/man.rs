//! `isolator man`: writes the manual pages.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Command;

use crate::commands::say;

/// Writes a page for each command: `isolator.1`, `isolator-serve.1`, and so on.
pub fn man(program: Command, directory: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(program, directory))
        .with_context(|| format!("{} can't be written", directory.display()))?;
    say(&format!("wrote the manual pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
