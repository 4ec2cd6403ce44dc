//! The caches of the tools: what was downloaded and unpacked. Each build that runs has one of its own, so that it answers only
//! for what it brings itself. They are bounded whenever a build ends and before one begins.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::measure::{Usage, is_unlinked};
use super::removal::remove_folder;
use super::{Building, Store, StoreError, new_name};

/// The cache of one build, which keeps it from others.
#[derive(Debug)]
pub(super) struct Slot {
    /// Has a folder for each tool.
    pub folder: PathBuf,
    held: File,
}

impl Slot {
    /// Lets others have it.
    pub(super) fn let_go(&self) {
        // If this fails, the end of the file does it.
        let _ = flock(&self.held, FlockOperation::Unlock);
    }
}

/// What became of the caches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// Bytes that this freed.
    pub bytes: u64,
    /// Whether none stays because a process builds with it.
    pub is_all: bool,
}

impl Store {
    /// Begins to build a set, with the first cache that no other build has. It may have `most` bytes before and after.
    ///
    /// # Errors
    ///
    /// When its folders can't be made.
    pub(crate) fn begin(&self, most: u64) -> Result<Building, StoreError> {
        let mut number = 0;
        let cache = loop {
            match self.take_slot(number) {
                // There are never more than builds that run at once.
                Err(StoreError::InUse(_)) => number += 1,
                taken => break taken?,
            }
        };
        let mut before = HashSet::new();
        let usage = usage_of(&cache.folder, |found| {
            before.insert(found.ino());
        });
        if usage.bytes > most || usage.too_deep.is_some() {
            before.clear();
            match self.move_away(&cache).and_then(|away| remove_folder(&away)) {
                // It is out of the way, and the next sweep tries it again.
                Err(error @ StoreError::Left { .. }) => {
                    tracing::warn!(%error, "a cache of packages was not removed");
                }
                removed => removed?,
            }
        }
        fs::create_dir_all(&cache.folder).map_err(|error| StoreError::io(&cache.folder, error))?;
        Building::begin(self, cache, before, most)
    }

    /// The folder of the caches.
    pub(super) fn caches(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The numbers of the caches that are there.
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

    /// Keeps a cache from others, unless one has it.
    fn take_slot(&self, number: u32) -> Result<Slot, StoreError> {
        let name = format!("cache.{number}.lock");
        let held = self.lock_file_of(&name, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Slot { folder: self.slot(number), held })
    }

    /// Moves away what is in a cache. Returns where it is then.
    pub(super) fn move_away(&self, cache: &Slot) -> Result<PathBuf, StoreError> {
        let away = self.folder.join("removed").join(new_name());
        match fs::rename(&cache.folder, &away) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(&cache.folder, error))
            }
            _ => Ok(away),
        }
    }

    /// Removes caches until the others have no more bytes together than they may. One with which a process builds stays: the
    /// end of that build does it.
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

    /// Removes what the tools have downloaded, except for that with which processes build at this moment.
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

/// What is in a cache and in no set.
fn usage_of(cache: &Path, mut see: impl FnMut(&Metadata)) -> Usage {
    let mut usage = Usage::default();
    usage.add(cache, |found| {
        see(found);
        is_unlinked(found)
    });
    usage
}
