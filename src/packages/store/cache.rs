//! The caches of the tools: what was downloaded and unpacked, bounded whenever a build ends and before one begins.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rustix::fs::FlockOperation;

use super::measure::{Usage, is_unlinked};
use super::removal::remove_folder;
use super::{Building, Store, StoreError, new_name};

/// How many bytes the caches of the tools may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheRoom {
    /// When nobody builds.
    pub idle: u64,
    /// When another build begins beside those that go on.
    pub shared: u64,
}

impl Store {
    /// Begins to build a set. `None` if builds that go on have filled the caches: try again when one has ended.
    ///
    /// # Errors
    ///
    /// When its folder can't be made.
    pub(crate) fn begin(&self, room: CacheRoom) -> Result<Option<Building>, StoreError> {
        loop {
            let held = self.use_cache()?;
            let mut before = HashSet::new();
            let cache = self.cache_usage(|found| {
                before.insert(found.ino());
            });
            if cache.bytes <= room.idle && cache.too_deep.is_none() {
                return Building::begin(self, held, before, room.idle).map(Some);
            }
            drop(held);
            match self.clear_cache() {
                Ok(Some(bytes)) if bytes > 0 => continue,
                // It is out of the way, and the next sweep tries it again.
                Err(error @ StoreError::Left { .. }) => {
                    tracing::warn!(%error, "a cache of packages was not removed");
                    continue;
                }
                cleared => cleared?,
            };
            if cache.bytes > room.shared {
                return Ok(None);
            }
            return Building::begin(self, self.use_cache()?, before, room.idle).map(Some);
        }
    }

    /// The folder of a tool's cache.
    pub(crate) fn cache(&self, tool: &str) -> PathBuf {
        self.folder.join("cache").join(tool)
    }

    /// Keeps the caches until the lock is dropped.
    fn use_cache(&self) -> Result<File, StoreError> {
        self.lock_file_of("cache.lock", FlockOperation::LockShared)
    }

    /// What is in the caches and in no set.
    fn cache_usage(&self, mut see: impl FnMut(&Metadata)) -> Usage {
        let mut usage = Usage::default();
        usage.add(&self.folder.join("cache"), |found| {
            see(found);
            is_unlinked(found)
        });
        usage
    }

    /// Removes the caches if they have more bytes than they may, or what was refused, unless a process builds: then the end of
    /// that build does it.
    pub(crate) fn bound_cache(&self, most: u64) {
        if !self.has_spoiled_cache.load(Ordering::Relaxed) && self.cache_usage(|_| {}).bytes <= most
        {
            return;
        }
        match self.clear_cache() {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                tracing::info!(
                    bytes,
                    "the cache of packages was removed, because it was too large"
                );
            }
            Err(error) => tracing::warn!(%error, "the cache of packages could not be bounded"),
        }
    }

    /// Removes what the tools have downloaded, unless a process builds at this moment. Returns the bytes that this freed,
    /// and nothing if they stay.
    ///
    /// # Errors
    ///
    /// When the folder can't be moved away or deleted.
    pub(crate) fn clear_cache(&self) -> Result<Option<u64>, StoreError> {
        let bytes = self.cache_usage(|_| {}).bytes;
        let held = match self.lock_file_of("cache.lock", FlockOperation::NonBlockingLockExclusive) {
            Err(StoreError::InUse(_)) => return Ok(None),
            held => held?,
        };
        let cache = self.folder.join("cache");
        let away = self.folder.join("removed").join(new_name());
        fs::rename(&cache, &away).map_err(|error| StoreError::io(&cache, error))?;
        self.has_spoiled_cache.store(false, Ordering::Relaxed);
        let made = fs::create_dir(&cache).map_err(|error| StoreError::io(&cache, error));
        drop(held);
        made.and(remove_folder(&away)).map(|()| Some(bytes))
    }
}
