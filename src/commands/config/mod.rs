//! `isolator config`: checks, describes or creates a configuration.

mod check;
mod init;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::commands::cli::ConfigCommand;
use crate::commands::{Work, complain, say};
use crate::config::{self, Config, ConfigError, EngineKind, Problem};

/// Runs the command, with the `--config` and the `--engine` that were given.
pub fn config(file: Option<PathBuf>, engine: Option<EngineKind>, command: ConfigCommand) -> Work {
    Box::pin(async move {
        let load = || -> Result<Config, ConfigError> {
            let mut config = Config::load(file.as_deref())?;
            config.is_file_chosen_on_command_line = file.is_some();
            config.choose_engine(engine);
            Ok(config)
        };
        match command {
            ConfigCommand::Check { show } => match load() {
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

/// How the folder of snippets gets some.
pub(super) fn how_to_get_snippets(config: &Config) -> String {
    let parent = config.prompts.parent().unwrap_or(Path::new(""));
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match config.prompts.ends_with(init::SNIPPETS) {
        true => format!("`isolator config init {}` writes some", folder.display()),
        false => "`isolator config init FOLDER` writes some into the folder prompts there, for you to copy".to_owned(),
    }
}

/// Prints every key with its value, and where that comes from.
fn show_all(config: &Config) -> anyhow::Result<ExitCode> {
    let failed =
        |problems: Vec<Problem>| ConfigError::Invalid { file: config.file.clone(), problems };
    for entry in config.effective().map_err(failed)? {
        say(&format!("{} = {}  # {}", entry.key, entry.value, entry.origin))?;
    }
    Ok(ExitCode::SUCCESS)
}
