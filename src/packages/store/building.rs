//! A set that is being built: a separate folder, which is removed unless it becomes a set.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock, syncfs};

use super::cache::{Slot, usage_of};
use super::measure::Growth;
use super::removal::{BUILDING_LOCK, remove_folder, remove_or_warn};
use super::tree::{self, TreeEntry};
use super::{AtPath as _, Store, StoreError, StoredSet, new_name, remove_file, text_of};
use crate::reread::Version;

/// The folder that becomes the set.
const SET: &str = "set";

/// A folder in which a set is built. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Building {
    store: Store,
    folder: PathBuf,
    lock: File,
    /// The cache of its tools.
    cache: Slot,
    /// Whether files there were refused, or are not complete.
    is_cache_spoiled: AtomicBool,
    /// The inodes that were there when it began.
    before: Arc<HashSet<u64>>,
    /// Bytes that all caches may have when it has ended.
    cache_most: u64,
}

impl Store {
    /// Begins to build a set, with the first free cache. A cache may have `most` bytes before and after.
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
        fs::create_dir_all(&cache.folder).at(&cache.folder)?;
        Building::begin(self, cache, before, most)
    }
}

/// The right to build a set, which one process has, on whichever node. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Alone {
    path: PathBuf,
    /// Keeps the lock.
    _lock: File,
}

impl Store {
    /// Takes the right to build the set with this hash; `None` while another process has it.
    pub(crate) fn alone(&self, hash: &str) -> Result<Option<Alone>, StoreError> {
        // It is a hash, as the set's folder has it.
        let _ = self.set_folder(hash)?;
        let name = format!("build.{hash}.lock");
        let path = self.folder.join(&name);
        let lock = match self.lock_file_of(&name, FlockOperation::NonBlockingLockExclusive) {
            Err(StoreError::InUse(_)) => return Ok(None),
            locked => locked?,
        };
        // The process that had it before may have removed the file meanwhile.
        let own = lock.metadata().at(&path)?.ino();
        let is_there = fs::metadata(&path).is_ok_and(|there| there.ino() == own);
        Ok(is_there.then_some(Alone { path, _lock: lock }))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // Before the lock ends, so that it is no other process's file.
        if let Err(error) = remove_file(&self.path) {
            tracing::warn!(%error, "the lock of a build stays");
        }
    }
}

impl Building {
    /// Begins a set, with its own cache. The folder for its files is there.
    fn begin(
        store: &Store,
        cache: Slot,
        before: HashSet<u64>,
        cache_most: u64,
    ) -> Result<Self, StoreError> {
        // Otherwise a sweep could see the folder before its lock.
        let all = store.lock_all()?;
        let folder = store.folder.join("building").join(new_name());
        fs::create_dir(&folder).at(&folder)?;
        let remove = |error: StoreError| {
            remove_or_warn(&folder);
            error
        };
        let path = folder.join(BUILDING_LOCK);
        let lock = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)
            .at(&path)
            .map_err(remove)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).at(&path).map_err(remove)?;
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
        fs::create_dir_all(&files).at(&files)?;
        Ok(building)
    }

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

    /// The growth of its folder and its cache since it began.
    pub(crate) fn growth(&self) -> Growth {
        let cache = self.cache.folder.clone();
        Growth { folder: self.folder.clone(), cache, before: Arc::clone(&self.before) }
    }

    /// Lets its cache be removed when it ends: files there were refused, or are not complete.
    pub(crate) fn spoil_cache(&self) {
        self.is_cache_spoiled.store(true, Ordering::Relaxed);
    }

    /// The files of the set.
    pub(crate) fn files(&self) -> PathBuf {
        self.folder.join(SET).join(super::FILES)
    }

    /// Makes it a set that all processes of this user see. If another process has published the same set, this one is dropped.
    pub(crate) fn publish(self, set: &StoredSet, entries: &[TreeEntry]) -> Result<(), StoreError> {
        let new = self.folder.join(SET);
        let manifest = tree::manifest(&self.files(), entries)?;
        let write = |name: &str, content: &[u8]| {
            let path = new.join(name);
            fs::write(&path, content).at(&path)
        };
        write(super::MANIFEST, manifest.as_bytes())?;
        write(super::USED, b"")?;
        let text = text_of(set, &manifest);
        let path = new.join(super::SET_FILE);
        let mut set_file = File::create_new(&path).at(&path)?;
        set_file.write_all(text.as_bytes()).at(&path)?;
        if let Some(key) = &self.store.key {
            key.seal(&new, text.as_bytes())?;
        }
        // After a power cut the set is there as a whole or not at all.
        let folder = File::open(&new).at(&new)?;
        syncfs(&folder).at(&new)?;
        // Of the file that was written here: what another process may put in its place is verified before it is used.
        let version = Version::of(&set_file.metadata().at(&path)?);
        let place = self.store.set_folder(&set.hash)?;
        let all = self.store.lock_all()?;
        if place.join(super::SET_FILE).exists() {
            return Ok(());
        }
        fs::rename(&new, &place).at(&place)?;
        drop(all);
        self.store.mark_verified(&set.hash, version);
        Ok(())
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // Out of the way at once. The next start removes files that are left there.
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
        // So that the next build, which may begin at once, can use the downloads of this one.
        self.cache.let_go();
        let (store, most) = (self.store.clone(), self.cache_most);
        let remove = move || {
            left.iter().for_each(|folder| remove_or_warn(folder));
            // Also after a failure.
            store.bound_cache(most);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
