//! A set that is being built: a folder of its own, which is removed unless it becomes a set.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock, syncfs};

use super::cache::Slot;
use super::{Growth, SetFile, Store, StoreError, StoredSet, new_name, tree};
use crate::packages::store::tree::Entry;

/// The file whose lock says that somebody builds here.
pub(super) const LOCK: &str = "lock";

/// What becomes the set.
const SET: &str = "set";

/// A folder in which a set is built. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Building {
    store: Store,
    folder: PathBuf,
    lock: File,
    /// What its tools download and unpack.
    cache: Slot,
    /// Whether what is there was refused, or is not complete.
    is_cache_spoiled: AtomicBool,
    /// The inodes that were there when it began.
    before: Arc<HashSet<u64>>,
    /// Bytes that all caches may have when it has ended.
    cache_most: u64,
}

impl Building {
    /// Begins a set, with a cache of its own. The folder for its files is there.
    ///
    /// # Errors
    ///
    /// When a folder can't be made.
    pub(super) fn begin(
        store: &Store,
        cache: Slot,
        before: HashSet<u64>,
        cache_most: u64,
    ) -> Result<Self, StoreError> {
        // Otherwise a sweep could see the folder before its lock.
        let all = store.lock_all()?;
        let folder = store.folder.join("building").join(new_name());
        let failed = |error| StoreError::io(&folder, error);
        fs::create_dir(&folder).map_err(failed)?;
        let remove = |error: StoreError| {
            super::removal::remove_or_warn(&folder);
            error
        };
        let path = folder.join(LOCK);
        let lock = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| remove(StoreError::io(&path, error)))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| remove(StoreError::io(&path, error.into())))?;
        drop(all);
        let building = Self {
            store: store.clone(),
            folder,
            lock,
            cache,
            is_cache_spoiled: AtomicBool::new(false),
            before: before.into(),
            cache_most,
        };
        let files = building.files();
        fs::create_dir_all(&files).map_err(|error| StoreError::io(&files, error))?;
        Ok(building)
    }

    /// A name that no other build has.
    pub(crate) fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The folder where tools work.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file whose lock keeps the folder. Tools inherit it.
    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }

    /// The folder where a tool keeps what it downloads. No other build that runs has it.
    pub(crate) fn cache(&self, tool: &str) -> PathBuf {
        self.cache.folder.join(tool)
    }

    /// What is in its folder, and what has come to its cache since it began.
    pub(crate) fn growth(&self) -> Growth {
        let cache = self.cache.folder.clone();
        Growth { folder: self.folder.clone(), cache, before: Arc::clone(&self.before) }
    }

    /// Lets its cache go when it ends: what is there was refused, or is not complete.
    pub(crate) fn spoil_cache(&self) {
        self.is_cache_spoiled.store(true, Ordering::Relaxed);
    }

    /// The files of the set.
    pub(crate) fn files(&self) -> PathBuf {
        self.folder.join(SET).join(super::FILES)
    }

    /// Makes it a set that all processes of this user see. If another process was faster, this one's work is dropped.
    ///
    /// # Errors
    ///
    /// When files can't be read or written.
    pub(crate) fn publish(self, set: &StoredSet, entries: &[Entry]) -> Result<(), StoreError> {
        let new = self.folder.join(SET);
        let manifest = tree::manifest(&self.files(), entries)?;
        let file = SetFile { manifest: super::hash_of(manifest.as_bytes()), set: set.clone() };
        let write = |name: &str, content: &[u8]| {
            let path = new.join(name);
            fs::write(&path, content).map_err(|error| StoreError::io(&path, error))
        };
        write(super::MANIFEST, manifest.as_bytes())?;
        write(super::USED, b"")?;
        write(super::SET_FILE, &serde_json::to_vec_pretty(&file).expect("plain data is JSON"))?;
        // After a power cut the set is there as a whole or not at all.
        let folder = File::open(&new).map_err(|error| StoreError::io(&new, error))?;
        syncfs(&folder).map_err(|error| StoreError::io(&new, error.into()))?;
        let place = self.store.set_folder(&set.hash)?;
        let all = self.store.lock_all()?;
        if place.join(super::SET_FILE).exists() {
            return Ok(());
        }
        fs::rename(&new, &place).map_err(|error| StoreError::io(&place, error))?;
        drop(all);
        self.store.mark_verified(&set.hash);
        Ok(())
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // Out of the way at once. What is left there goes with the next start.
        let away = self.store.folder.join("removed").join(new_name());
        let folder = match fs::rename(&self.folder, &away) {
            Ok(()) => away,
            Err(error) => {
                tracing::warn!(%error, folder = %self.folder.display(), "a build's folder could not be moved away");
                self.folder.clone()
            }
        };
        let mut left = vec![folder];
        if self.is_cache_spoiled.load(Ordering::Relaxed) {
            match self.store.move_away(&self.cache) {
                Ok(away) => {
                    tracing::info!(
                        "a cache of packages is removed, because its build was ended at a bound"
                    );
                    left.push(away);
                }
                Err(error) => tracing::warn!(%error, "a spoiled cache of packages stays"),
            }
        }
        // So that the next build, which may begin at once, finds what this one has downloaded.
        self.cache.let_go();
        let (store, most) = (self.store.clone(), self.cache_most);
        let remove = move || {
            left.iter().for_each(|folder| super::removal::remove_or_warn(folder));
            // However it has ended.
            store.bound_cache(most);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
