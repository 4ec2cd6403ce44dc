//! `isolator config`: checks, describes or creates a configuration.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use include_dir::{Dir, include_dir};

use crate::commands::cli::ConfigCommand;
use crate::commands::{complain, say};
use crate::config::{self, Config, ConfigError, FILE_NAME};

/// The configuration that `isolator config init` writes.
const DEFAULT: &str = include_str!("../../isolator_config.json");

/// The snippets that come with Isolator.
static PROMPTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/prompts");

/// Runs the command.
pub fn config(file: Option<&Path>, command: ConfigCommand) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Check => check(file),
        ConfigCommand::Schema => {
            say(&serde_json::to_string_pretty(&config::schema())?);
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Init { directory } => init(&directory),
    }
}

fn check(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    match Config::load(file) {
        Ok(config) => {
            let name = config.file.as_deref().map_or("the defaults".into(), Path::to_string_lossy);
            let languages: Vec<_> = config.languages.keys().cloned().collect();
            say(&format!("{name}: valid, with {}", languages.join(", ")));
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ ConfigError::Invalid { .. }) => {
            complain(&error.to_string());
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes the default configuration and the snippets. Existing files are not changed.
fn init(directory: &Path) -> anyhow::Result<ExitCode> {
    let file = directory.join(FILE_NAME);
    if file.exists() {
        bail!("{} already exists; it was left as it is", file.display());
    }
    let prompts = directory.join("prompts");
    std::fs::create_dir_all(&prompts).with_context(|| prompts.display().to_string())?;
    std::fs::write(&file, DEFAULT).with_context(|| file.display().to_string())?;
    say(&file.display().to_string());
    for snippet in PROMPTS.files() {
        let path = prompts.join(snippet.path());
        if path.exists() {
            complain(&format!("{} already exists; it was left as it is", path.display()));
            continue;
        }
        std::fs::write(&path, snippet.contents()).with_context(|| path.display().to_string())?;
        say(&path.display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
