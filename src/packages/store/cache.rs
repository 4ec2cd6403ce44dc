//! The caches of the tools: files that were downloaded and unpacked. Each running build has its own, so that only its own files count
//! towards its limits. Caches are bounded whenever a build ends and before one begins.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::measure::{Usage, is_unlinked};
use super::removal::remove_folder;
use super::{Store, StoreError, new_name};

/// The cache of one build, locked so that others don't use it.
#[derive(Debug)]
pub(super) struct Slot {
    /// Has a folder for each tool.
    pub folder: PathBuf,
    held: File,
}

impl Slot {
    /// Unlocks it for other builds.
    pub(super) fn let_go(&self) {
        // If this fails, closing the file unlocks it.
        let _ = flock(&self.held, FlockOperation::Unlock);
    }
}

/// The result of clearing the caches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// Bytes that this freed.
    pub bytes: u64,
    /// Whether none stays because a process builds with it.
    pub is_all: bool,
}

impl Store {
    /// The folder of the caches.
    pub(super) fn caches(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The numbers of the existing caches.
    fn slots(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.caches()).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The folder of a cache.
    fn slot(&self, number: u32) -> PathBuf {
        self.caches().join(number.to_string())
    }

    /// Locks a cache, unless another build uses it.
    pub(super) fn take_slot(&self, number: u32) -> Result<Slot, StoreError> {
        let name = format!("cache.{number}.lock");
        let held = self.lock_file_of(&name, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Slot { folder: self.slot(number), held })
    }

    /// Moves a cache out of the way, and returns its new path.
    pub(super) fn move_away(&self, cache: &Slot) -> Result<PathBuf, StoreError> {
        let away = self.folder.join("removed").join(new_name());
        match fs::rename(&cache.folder, &away) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(&cache.folder, error))
            }
            _ => Ok(away),
        }
    }

    /// Removes caches until the others fit the limit together. One that a build uses stays until the end of that build.
    pub(crate) fn bound_cache(&self, most: u64) {
        let mut left = most;
        for number in self.slots() {
            let bytes = usage_of(&self.slot(number), |_| {}).bytes;
            if bytes <= left {
                left -= bytes;
                continue;
            }
            match self.clear_slot(number) {
                Ok(()) => tracing::info!(
                    bytes,
                    "a cache of packages was removed, because all together were too large"
                ),
                Err(StoreError::InUse(_)) => {}
                Err(error) => tracing::warn!(%error, "a cache of packages could not be bounded"),
            }
        }
    }

    /// Removes the caches, except for those that running builds use.
    ///
    /// # Errors
    ///
    /// The last one, when a folder can't be moved away or deleted. Everything that can be removed is.
    pub(crate) fn clear_cache(&self) -> Result<Cleared, StoreError> {
        let mut cleared = Ok(Cleared { bytes: 0, is_all: true });
        for number in self.slots() {
            let freed = usage_of(&self.slot(number), |_| {}).bytes;
            match (self.clear_slot(number), &mut cleared) {
                (Ok(()), Ok(Cleared { bytes, .. })) => *bytes += freed,
                (Err(StoreError::InUse(_)), Ok(Cleared { is_all, .. })) => *is_all = false,
                (Ok(()) | Err(StoreError::InUse(_)), Err(_)) => {}
                (Err(error), cleared) => *cleared = Err(error),
            }
        }
        cleared
    }

    fn clear_slot(&self, number: u32) -> Result<(), StoreError> {
        let cache = self.take_slot(number)?;
        let away = self.move_away(&cache)?;
        cache.let_go();
        remove_folder(&away)
    }
}

/// The files that are in a cache and in no set.
pub(super) fn usage_of(cache: &Path, mut see: impl FnMut(&Metadata)) -> Usage {
    let mut usage = Usage::default();
    usage.add(cache, |found| {
        see(found);
        is_unlinked(found)
    });
    usage
}
