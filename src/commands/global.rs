//! The options of all commands, and what follows from them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::advice::remember_options;
use super::{complain, describe};
use crate::config::{Config, ConfigError, EngineKind};
use crate::log::LogFormat;

/// The exit code for Isolator's own errors, wrong command lines among them, as with `docker run`, so that it is not taken for the
/// program's.
pub const FAILED: u8 = 125;

/// The heading of the options in the help.
const HEADING: &str = "Options of all commands";

/// The options of all commands.
#[derive(Debug, Clone, Args)]
pub struct GlobalOptions {
    /// Configuration file [default: $ISOLATOR_CONFIG, ./isolator_config.json, or the one in the
    /// user's configuration directory]
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    pub config: Option<PathBuf>,
    /// Engine to use instead of the configured one
    #[arg(long, global = true, value_enum, value_name = "KIND", help_heading = HEADING)]
    pub engine: Option<EngineKind>,
    /// How lines of the log are written, to standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, help_heading = HEADING)]
    pub log_format: LogFormat,
}

impl GlobalOptions {
    /// Lets advice name commands with these options.
    pub fn remember(&self) {
        remember_options(self.config.as_deref(), self.engine);
    }

    /// Loads the configuration that they name.
    ///
    /// # Errors
    ///
    /// When it can't be read, or is wrong.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(self.config.as_deref())?;
        config.is_file_chosen_on_command_line = self.config.is_some();
        config.choose_engine(self.engine);
        Ok(config)
    }
}

/// The exit code of a command that has ended. An error is written to standard error.
pub fn exit_code(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        complain(&format!("isolator: {}", describe(&error)));
        ExitCode::from(FAILED)
    })
}
