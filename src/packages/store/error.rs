//! The errors of the store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An operation of the store that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// There is no such set.
    #[error("the set {0} is not in the store")]
    NoSuchSet(String),
    /// Processes use the set.
    #[error("the set {0} is in use")]
    InUse(String),
    /// Another process has a lock that each has only briefly.
    #[error(
        "{}: another process has had this lock for {}: it hangs or is stopped, on this or another node; end it, and try again",
        path.display(), crate::duration::shown(*wait)
    )]
    Locked { path: PathBuf, wait: Duration },
    /// A file of the set was changed since it was built.
    #[error(
        "the set {hash} was changed since it was built ({what}): remove it with `isolator packages rm {hash}`"
    )]
    Changed { hash: String, what: String },
    /// The disk is full.
    #[error("no space is left for packages in {}: free some, or remove sets with `isolator packages prune`", .0.display())]
    Full(PathBuf),
    /// Something is out of the way, and its files are still there.
    #[error("{} could not be deleted and still takes room: {error}; `isolator packages prune` and the next start try it again", folder.display())]
    Left {
        /// Where it is now.
        folder: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// A file or folder can't be used.
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

impl StoreError {
    /// The error of a file or folder.
    pub(in crate::packages) fn io(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full(path.parent().unwrap_or(path).to_owned())
            }
            _ => Self::Io { path: path.to_owned(), error },
        }
    }
}

/// Adds the path to an error of a file or folder.
pub(in crate::packages) trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> AtPath<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::io(path, error.into()))
    }
}

/// Removes a file, which may be missing.
pub(in crate::packages) fn remove_file(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.at(path),
    }
}
