//! An image of the store, and the lock that keeps it there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, flock, fstat, stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::description::Description;
use super::error::{IoContext, StoreError};
use super::mountpoints::Mountpoints;
use crate::engine::Image;
use crate::lock::lock;

pub(super) const ROOT: &str = "root";
pub(super) const DESCRIPTION: &str = "image.json";
const NEW_DESCRIPTION: &str = "image.json.new";

/// An image of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its digest, `sha256:…`.
    pub digest: String,
    /// Size of its files, in bytes.
    pub size: u64,
    /// Its variables and volumes.
    #[serde(flatten)]
    pub description: Description,
    #[serde(skip)]
    directory: PathBuf,
}

/// Keeps an image in the store as long as it lives.
#[derive(Debug)]
pub struct Held {
    pub(super) image: Stored,
    mountpoints: Mutex<Mountpoints>,
    lock: File,
}

impl Stored {
    pub(super) fn new(digest: &str, size: u64, description: Description) -> Self {
        Self { digest: digest.to_owned(), size, description, directory: PathBuf::new() }
    }

    /// Reads the description of the image in a directory, if there is one.
    pub(super) fn read(directory: PathBuf) -> Result<Option<Self>, StoreError> {
        let path = directory.join(DESCRIPTION);
        match fs::read(&path) {
            Ok(json) => {
                let stored: Self = serde_json::from_slice(&json).at("read", &path)?;
                Ok(Some(Self { directory, ..stored }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("read", &path),
        }
    }

    /// Writes the description into the image's directory, as a whole or not at all.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let new = directory.join(NEW_DESCRIPTION);
        fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        fs::rename(new, directory.join(DESCRIPTION))
    }

    /// The image as an engine knows it.
    pub fn image(&self, name: &str) -> Image {
        Image {
            name: name.to_owned(),
            digest: self.digest.clone(),
            size: self.size,
            volumes: self.description.volumes.clone(),
        }
    }

    /// Where its root is in [`Store::images`](super::Store::images).
    pub fn relative_root(&self) -> PathBuf {
        Path::new(self.digest.trim_start_matches("sha256:")).join(ROOT)
    }

    /// The absolute path of its root.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.join(ROOT)
    }

    /// Keeps the image in the store. Others may do so at the same time.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSuchImage`] if it was removed meanwhile.
    pub fn hold(&self) -> Result<Held, StoreError> {
        let gone = || StoreError::NoSuchImage(self.digest.clone());
        let lock = match File::open(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
            lock => lock.at("open", &self.directory)?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            // Only a process that removes it locks it exclusively.
            Err(Errno::WOULDBLOCK) => return Err(gone()),
            locked => locked.at("lock", &self.directory)?,
        }
        let held = Held { image: self.clone(), mountpoints: Mutex::default(), lock };
        // It may have been moved away between the two calls.
        if held.is_there() { Ok(held) } else { Err(gone()) }
    }
}

impl Held {
    /// The image.
    pub fn image(&self) -> &Stored {
        &self.image
    }

    /// Whether the image is still in the store. A lock protects it from other servers, but not from users who delete files.
    pub fn is_there(&self) -> bool {
        let directory = &self.image.directory;
        let is_same = match (fstat(&self.lock), stat(directory)) {
            (Ok(held), Ok(found)) => (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino),
            _ => false,
        };
        is_same && stat(directory.join(DESCRIPTION)).is_ok() && stat(self.image.root()).is_ok()
    }

    /// Creates missing mount points in the root: directories and empty files.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if something else is there already, or a link is on the way.
    pub fn make_mountpoints(
        &self,
        directories: &[PathBuf],
        files: &[PathBuf],
    ) -> Result<(), StoreError> {
        let mut mountpoints = lock(&self.mountpoints);
        mountpoints.make(&self.image.root(), &self.image.digest, directories, files)
    }
}
