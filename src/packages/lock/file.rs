//! The files of locks: their names, their packages, and the errors of reading them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The files of a lock of Python: the requirements, and the packages with their hashes.
pub(in crate::packages) const WANTED: &str = "requirements.in";
pub(in crate::packages) const REQUIREMENTS: &str = "requirements.txt";

/// The pins of the locks of its parts, for uv.
pub(in crate::packages) const CONSTRAINTS: &str = "constraints.txt";

/// Those of a lock of Node.js.
pub(in crate::packages) const PACKAGE: &str = "package.json";
pub(in crate::packages) const PACKAGE_LOCK: &str = "package-lock.json";

/// Largest file of a lock, in bytes.
const LARGEST: u64 = 32 << 20;

/// A package of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Locked {
    pub name: String,
    pub version: String,
    /// The packages that want it; none if only the requirements do.
    pub wanted_by: Vec<String>,
}

/// A lock that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// It has something that no lock of ours has, or does not fit.
    #[error("{0}")]
    Content(String),
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// A file is not as npm writes it.
    #[error("{file} can't be read: {error}")]
    Json {
        file: &'static str,
        /// The cause.
        #[source]
        error: serde_json::Error,
    },
    /// The lock in a folder can't be used.
    #[error("the lock in {} can't be used: {error}; `isolator packages lock` writes it again", folder.display())]
    Folder {
        folder: PathBuf,
        /// The cause.
        #[source]
        error: Box<Self>,
    },
}

impl LockError {
    pub(in crate::packages) fn new(message: impl Into<String>) -> Self {
        Self::Content(message.into())
    }

    /// Whether its text names no file of the server.
    pub(in crate::packages) const fn is_without_path(&self) -> bool {
        matches!(self, Self::Content(_) | Self::Json { .. })
    }

    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// Reads a text that is not too long.
pub(in crate::packages) fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a file"));
    }
    if file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        return Err(io::Error::other(format!("is larger than {} MiB", LARGEST >> 20)));
    }
    Ok(text)
}
