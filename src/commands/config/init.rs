//! `isolator config init`: writes what to start from.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use include_dir::{Dir, include_dir};
use tempfile::NamedTempFile;

use crate::commands::{complain, say};
use crate::config::{FILE_NAME, user_directory};

/// The configuration that is written.
const DEFAULT: &str = include_str!("../../../isolator_config.json");

/// The snippets that come with Isolator.
static PROMPTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/prompts");

/// Writes the default configuration and the snippets. Existing files are not changed, so it can be repeated.
pub(super) fn init(directory: &Path) -> anyhow::Result<ExitCode> {
    let prompts = directory.join("prompts");
    std::fs::create_dir_all(&prompts)
        .with_context(|| format!("{} can't be created", prompts.display()))?;
    for snippet in PROMPTS.files() {
        write(&prompts.join(snippet.path()), snippet.contents())?;
    }
    // Last: a configuration is there only if all that it needs is.
    let file = directory.join(FILE_NAME);
    write(&file, DEFAULT.as_bytes())?;
    complain(&next_steps(&std::path::absolute(&file)?));
    Ok(ExitCode::SUCCESS)
}

/// Writes a file as a whole or not at all, unless there is one.
fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("{} can't be written", path.display());
    let directory = path.parent().map_or(PathBuf::from("."), Path::to_owned);
    let mut file = NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(content).with_context(failed)?;
    readable_by_all(file.path()).with_context(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => say(&path.display().to_string())?,
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            complain(&format!("{} already exists; it was left as it is", path.display()));
        }
        Err(error) => return Err(error.error).with_context(failed),
    }
    Ok(())
}

/// Temporary files are for their owner alone. These hold no secrets, and a server may be another user.
fn readable_by_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// What to do with the configuration.
fn next_steps(file: &Path) -> String {
    let is_users = user_directory().is_some_and(|folder| file.parent() == Some(&folder));
    let used = if is_users {
        "Isolator uses it from every folder that has none of its own.".to_owned()
    } else {
        let file = file.display();
        format!(
            "Isolator uses it when it starts in this folder. From elsewhere, use --config {file}"
        )
    };
    format!("{used}\nTo switch a language off, set its \"enabled\" to false.")
}
