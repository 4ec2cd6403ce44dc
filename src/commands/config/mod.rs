//! `isolator config`: checks, describes or creates a configuration.

mod check;
mod init;

use clap::Subcommand;
use std::path::PathBuf;
use std::process::ExitCode;

use super::global::GlobalOptions;
use crate::commands::{Work, complain, say};
use crate::config::{self, Config, ConfigError};

/// The commands for the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration, the files that it names, and whether the engine can do what it says. The exit
    /// code is 1 if there are errors
    Check {
        /// Only print every key with its value, and where that comes from
        #[arg(long)]
        show: bool,
    },
    /// Print the JSON schema of the configuration
    Schema,
    /// Write a configuration to start from, and the snippets that come with Isolator
    Init {
        /// The directory to write to
        #[arg(default_value = ".")]
        directory: PathBuf,
    },
}

/// Runs the command.
pub fn config(options: GlobalOptions, command: ConfigCommand) -> Work {
    Box::pin(async move {
        match command {
            ConfigCommand::Check { show } => match options.load() {
                Ok(config) if show => show_all(&config),
                Ok(config) => check::check(&config).await,
                Err(error @ ConfigError::Invalid { .. }) => {
                    complain(&error.to_string());
                    Ok(ExitCode::FAILURE)
                }
                Err(error) => Err(error.into()),
            },
            ConfigCommand::Schema => {
                say(&serde_json::to_string_pretty(&config::schema())?)?;
                Ok(ExitCode::SUCCESS)
            }
            ConfigCommand::Init { directory } => init::init(&directory),
        }
    })
}

/// Prints every key with its value, and where that comes from.
fn show_all(config: &Config) -> anyhow::Result<ExitCode> {
    for entry in config.effective() {
        say(&format!("{} = {}  # {}", entry.key, entry.value, entry.origin))?;
    }
    Ok(ExitCode::SUCCESS)
}
