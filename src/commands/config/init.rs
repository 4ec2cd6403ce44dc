//! `isolator config init`: writes what to start from.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use include_dir::{Dir, include_dir};
use tempfile::NamedTempFile;

use crate::commands::advice::SNIPPETS;
use crate::commands::{complain, say};
use crate::config::{FILE_NAME, user_directory};

/// The configuration that is written.
const DEFAULT: &str = include_str!("../../../isolator_config.json");

/// The snippets that come with Isolator.
static PROMPTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/prompts");

/// Writes the default configuration and the snippets. Existing files are not changed, so it can be repeated.
pub(super) fn init(directory: &Path) -> anyhow::Result<ExitCode> {
    let prompts = directory.join(SNIPPETS);
    std::fs::create_dir_all(&prompts)
        .with_context(|| format!("{} can't be created", prompts.display()))?;
    let mut kept = Vec::new();
    for snippet in PROMPTS.files() {
        let path = prompts.join(snippet.path());
        if !write(&path, snippet.contents())? {
            kept.push(path);
        }
    }
    let snippets = match &kept[..] {
        [] => None,
        [one] => Some(format!("{} already exists; it was left as it is", one.display())),
        all => {
            let (count, folder) = (all.len(), prompts.display());
            Some(format!("{count} files in {folder} already exist; they were left as they are"))
        }
    };
    // Last: a configuration is there only if all that it needs is.
    let file = directory.join(FILE_NAME);
    let is_new = write(&file, DEFAULT.as_bytes())?;
    if let Some(snippets) = snippets {
        complain(&snippets);
    }
    if is_new {
        complain(&next_steps(&std::path::absolute(&file)?));
    } else {
        complain(&format!(
            "{} already exists; it was left as it is. Remove it to get a new one; `isolator config check --show` prints what holds",
            file.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file as a whole or not at all, unless there is one. Returns whether it did.
fn write(path: &Path, content: &[u8]) -> anyhow::Result<bool> {
    let failed = || format!("{} can't be written", path.display());
    let directory = path.parent().map_or(PathBuf::from("."), Path::to_owned);
    let mut file = NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(content).with_context(failed)?;
    readable_by_all(file.path()).with_context(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => say(&path.display().to_string()).map(|()| true),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error).with_context(failed),
    }
}

/// Temporary files are for their owner alone. These hold no secrets, and a server may be another user.
fn readable_by_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// The next steps with the configuration.
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
