//! Why the store did not do what it was asked.

use std::io;
use std::path::Path;

/// Why the store of images did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name of an image can't be read.
    #[error("{name:?} is not the name of an image: {message}")]
    Name {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        message: String,
    },
    /// The image is not there.
    #[error("image {0} is not in the store")]
    NoSuchImage(String),
    /// Sandboxes are made from the image, or it is being copied.
    #[error("image {0} is in use")]
    InUse(String),
    /// What was to be imported is no image that this store can hold.
    #[error("{what} is not an image that can be used: {message}")]
    Unusable {
        /// The file, the name or the part of it.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// A layer holds something that no image of this store may hold.
    #[error("{layer}, entry {entry:?}: {reason}")]
    Entry {
        /// The layer, by its number and digest.
        layer: String,
        /// The path of the entry as the layer has it.
        entry: String,
        /// Why it was refused.
        reason: String,
    },
    /// What was read is not what was announced.
    #[error("{what} is damaged: its digest is {found} and should be {expected}")]
    Digest {
        /// What was read.
        what: String,
        /// The digest that was announced.
        expected: String,
        /// The digest of what was read.
        found: String,
    },
    /// The registry did not hand the image out.
    #[error("image {name} could not be pulled: {message}")]
    Registry {
        /// The image.
        name: String,
        /// What the registry, or the way to it, said.
        message: String,
    },
    /// Nobody waits for the result any more.
    #[error("given up, because nobody waits for it")]
    GivenUp,
    /// The file system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was done, with the path.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl StoreError {
    pub(super) fn unusable(what: impl Into<String>, message: impl ToString) -> Self {
        Self::Unusable { what: what.into(), message: message.to_string() }
    }

    /// Whether the disk of the store is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }
}

/// Whether an error says that there is no more space, which is nobody's fault but the disk's.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Says what was done when the system refused.
pub(super) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, StoreError>;

    fn at(self, what: &str, path: &Path) -> Result<T, StoreError>
    where
        Self: Sized,
    {
        self.doing(|| format!("can't {what} {}", path.display()))
    }
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { what: what(), source: source.into() })
    }
}
