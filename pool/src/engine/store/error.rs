//! The errors of the store.

use std::io;
use std::path::Path;

use super::room::make_room;

/// An error of the store of images.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name of an image can't be read.
    #[error("{name:?} is not a valid image name: {message}")]
    Name {
        /// The name as given.
        name: String,
        /// The problem.
        message: String,
    },
    /// The image is not there.
    #[error("image {0} is not in the store")]
    NoSuchImage(String),
    /// Sandboxes are made from the image, or it is being copied.
    #[error("image {0} is in use")]
    InUse(String),
    /// The image can't be used by this store.
    #[error("{what} is not a usable image: {message}")]
    Unusable {
        /// The file, the name or the part of it.
        what: String,
        /// The problem.
        message: String,
    },
    /// A layer contains something that is not allowed in an image.
    #[error("{layer}, entry {entry:?}: {reason}")]
    Entry {
        /// The layer, by its number and digest.
        layer: String,
        /// The path of the entry as the layer has it.
        entry: String,
        /// The reason.
        reason: String,
    },
    /// The content does not have the expected digest.
    #[error("{what} is damaged: its digest is {found} but should be {expected}")]
    Digest {
        /// The damaged content.
        what: String,
        /// The digest that it should have.
        expected: String,
        /// The digest of the content.
        found: String,
    },
    /// The registry did not provide the image.
    #[error("image {name} could not be pulled: {source}")]
    Registry {
        /// The image.
        name: String,
        /// The error of the registry or of the connection.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk has no room for the image.
    #[error("{error}; {room}")]
    Full {
        /// The error of the file system.
        error: Box<StoreError>,
        /// The folder that needs room, and how much.
        room: String,
    },
    /// The caller no longer waits for the result.
    #[error(transparent)]
    Canceled(#[from] Canceled),
    /// An error of the file system.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation, with the path.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// A job was canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("canceled: the caller no longer waits for the result")]
pub struct Canceled;

impl From<Canceled> for io::Error {
    fn from(canceled: Canceled) -> Self {
        Self::other(canceled)
    }
}

impl StoreError {
    pub(super) fn unusable(what: impl Into<String>, message: impl ToString) -> Self {
        Self::Unusable { what: what.into(), message: message.to_string() }
    }

    #[cfg(not(fuzzing))]
    pub(super) fn registry(
        name: String,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::Registry { name, source: Box::new(error) }
    }

    /// Whether the disk of the store is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_full(source),
            Self::Full { .. } => true,
            _ => false,
        }
    }

    /// The same error. If the disk is full, it also names the folder that needs room, and how much.
    pub(in crate::engine) fn with_room(
        self,
        directory: &Path,
        needed: impl FnOnce() -> String,
    ) -> Self {
        match self {
            error @ Self::Io { .. } if error.is_disk_full() => {
                let room = make_room(directory, &needed());
                Self::Full { error: Box::new(error), room }
            }
            error => error,
        }
    }
}

/// Whether an error means that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Adds the operation to an I/O error.
pub(super) trait IoContext<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, StoreError>;

    fn at(self, what: &str, path: &Path) -> Result<T, StoreError>
    where
        Self: Sized,
    {
        self.context(|| format!("can't {what} {}", path.display()))
    }
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { what: what(), source: source.into() })
    }
}
