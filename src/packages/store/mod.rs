//! The sets on disk.
//!
//! ```text
//! sets/HASH/files/…      the files of the set, which sandboxes see
//! sets/HASH/set.json     its description; a process that uses the set holds a shared lock on this file
//! sets/HASH/manifest     the list of its files with their hashes; set.json has the hash of this
//! sets/HASH/seal         the seal of set.json, if the nodes that share the store have a key
//! sets/HASH/used         its modification time is that of the last use
//! building/…             sets that are being built, each with a lock
//! removed/…              folders that are being deleted
//! cache/NUMBER/…         caches of the tools, one for each running build; files of sets are hard links to files here
//! build.HASH.lock        is held by the process that builds this set, on any node
//! cache.NUMBER.lock      is held by the build that uses that cache
//! lock                   is held briefly by a process that adds or removes something
//! ```
//!
//! One rename makes a set visible, and one makes it invisible. So a process that is killed leaves at most files that no other
//! takes for a set, and the next start removes them. Locks (`flock`) show what is in use, because they end with their process.

mod building;
mod cache;
mod error;
mod locks;
mod measure;
mod removal;
mod seal;
pub(crate) mod tree;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use rustix::fs::{FlockOperation, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub(crate) use building::{Alone, Building};
pub(crate) use cache::Cleared;
pub(crate) use error::StoreError;
pub(super) use error::{AtPath, remove_file};
pub(crate) use measure::{Growth, Usage};
pub(crate) use seal::StoreKey;

use crate::hex::hex;
use crate::packages::lock::Locked;
use crate::reread::Version;

/// Names of a set's files.
const FILES: &str = "files";
const SET_FILE: &str = "set.json";
const MANIFEST: &str = "manifest";
const USED: &str = "used";

/// Flags with which files of the store are opened: it follows no link, and waits for no other end of a pipe.
const PLAIN: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// Most bytes of a `set.json`, and of a list of files, which has more than the longest paths and the hashes of the most files.
const MAX_SET_FILE: u64 = 4 << 20;
const MAX_MANIFEST: u64 = 256 << 20;

/// The minimum time between two uses that are noted.
const USES_APART: Duration = Duration::from_secs(30);

/// A set in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredSet {
    /// Its identity, in hexadecimal digits.
    pub hash: String,
    /// The interpreter that imports from it.
    pub interpreter: Interpreter,
    /// The target that it was built for.
    pub target: String,
    /// The index from which it came, without credentials; empty if the tools' own configuration said which.
    #[serde(default)]
    pub index: String,
    pub requirements: Vec<String>,
    /// The hashes of the locks that held for a part of it, by the names of their sets.
    #[serde(default)]
    pub locks: BTreeMap<String, String>,
    /// Its packages, in the order of their names.
    pub packages: Vec<Locked>,
    /// The names that programs import, topmost only.
    pub modules: Vec<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was built.
    pub built: SystemTime,
}

/// A field of `set.json` besides those of the set.
#[derive(Deserialize)]
struct ManifestHash {
    /// Hash of the list of its files.
    manifest: String,
}

/// Whether a set is as it was built, by its hash and the version of its `set.json`. The first caller verifies it, and others wait.
/// A set that another node has built again in its place is another version, also if it has the same inode.
type Verified = Mutex<HashMap<(String, Version), Arc<Mutex<bool>>>>;

/// The sets of a user on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: Arc<Path>,
    key: Option<StoreKey>,
    verified: Arc<Verified>,
}

impl Store {
    /// Opens the store in a folder, which is made, and cleans up after processes that were killed. With a key, only sets that were
    /// built with it are used.
    pub(crate) fn open(folder: &Path, key: Option<StoreKey>) -> Result<Self, StoreError> {
        let store = Self { folder: folder.into(), key, verified: Arc::default() };
        for name in ["sets", "building", "removed", "cache"] {
            let path = folder.join(name);
            let mut made = fs::DirBuilder::new();
            // Only the sandboxes of this user see sets, and only through mounts.
            made.recursive(true).mode(0o700);
            made.create(&path).at(&path)?;
        }
        if let Err(error) = store.sweep() {
            tracing::warn!(%error, "what is left of packages was not removed");
        }
        Ok(store)
    }

    /// The folder of the sets. Each is in a folder with its hash as the name.
    pub(crate) fn sets_folder(&self) -> PathBuf {
        self.folder.join("sets")
    }

    /// The file whose lock says that a process holds the set.
    pub(crate) fn lock_file(&self, hash: &str) -> PathBuf {
        self.sets_folder().join(hash).join(SET_FILE)
    }

    /// The folder of a set, which may be missing.
    fn set_folder(&self, hash: &str) -> Result<PathBuf, StoreError> {
        let is_hash = hash.len() == 64
            && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if is_hash {
            Ok(self.sets_folder().join(hash))
        } else {
            Err(StoreError::NoSuchSet(hash.chars().take(64).collect()))
        }
    }

    /// A set, if it is there.
    pub(crate) fn find(&self, hash: &str) -> Option<StoredSet> {
        let path = self.set_folder(hash).ok()?.join(SET_FILE);
        match read_set::<StoredSet>(&path) {
            Ok(Some(found)) if found.hash == hash => Some(found),
            Ok(None) => None,
            Ok(Some(_)) => {
                tracing::warn!(path = %path.display(), "a set of packages is in the wrong folder");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "a set of packages can't be read");
                None
            }
        }
    }

    /// Whether a set is there.
    pub(crate) fn is_there(&self, hash: &str) -> bool {
        self.lock_file(hash).exists()
    }

    /// All sets, and when each was last used.
    pub(crate) fn all(&self) -> Vec<(StoredSet, SystemTime)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.sets_folder()).into_iter().flatten().flatten() {
            let Some(set) = entry.file_name().to_str().and_then(|hash| self.find(hash)) else {
                continue;
            };
            let used = fs::metadata(entry.path().join(USED)).and_then(|used| used.modified());
            let used = used.unwrap_or(set.built);
            found.push((set, used));
        }
        found.sort_unstable_by(|(a, _), (b, _)| a.hash.cmp(&b.hash));
        found
    }

    /// Takes a set, which stays as long as the returned value. The first time in this process, all its files are verified,
    /// which takes a second for each gigabyte: call it where blocking is allowed.
    ///
    /// # Errors
    ///
    /// When it is not there, or was changed.
    pub(crate) fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError> {
        let folder = self.set_folder(&set.hash)?;
        let (held, version) = self.take(&set.hash, FlockOperation::LockShared)?;
        // Sandboxes see what is below this path, so none of it may be a link.
        for part in [folder.clone(), folder.join(FILES)] {
            if !fs::symlink_metadata(&part).at(&part)?.is_dir() {
                let what = "its folder is a link".to_owned();
                return Err(StoreError::Changed { hash: set.hash.clone(), what });
            }
        }
        let verified = {
            let mut all = lock(&self.verified);
            Arc::clone(all.entry((set.hash.clone(), version)).or_default())
        };
        let mut is_verified = lock(&verified);
        if !*is_verified {
            verify(&folder, set, self.key.as_ref())?;
            *is_verified = true;
        }
        Ok(Arc::new(PackageSet {
            hash: set.hash.clone(),
            folder: folder.join(FILES),
            interpreter: set.interpreter,
            modules: set.modules.clone(),
            held,
        }))
    }

    /// Locks a set that is there. Returns the lock, and the version of its file.
    fn take(&self, hash: &str, operation: FlockOperation) -> Result<(File, Version), StoreError> {
        let path = self.set_folder(hash)?.join(SET_FILE);
        let gone = || StoreError::NoSuchSet(hash.to_owned());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => gone(),
            _ => StoreError::io(&path, error),
        };
        // On NFS, only a file that can be written can be locked for one process alone.
        let is_exclusive = matches!(
            operation,
            FlockOperation::LockExclusive | FlockOperation::NonBlockingLockExclusive
        );
        let mut options = File::options();
        let file = options.read(true).write(is_exclusive).custom_flags(PLAIN).open(&path);
        let file = file.map_err(failed)?;
        locks::take(&file, &path, operation, hash)?;
        // It may have been removed before it was locked.
        let locked = file.metadata().map_err(failed)?;
        if fs::metadata(&path).map_err(failed)?.ino() == locked.ino() {
            Ok((file, Version::of(&locked)))
        } else {
            Err(gone())
        }
    }

    /// Remembers that the set with this version of its file was verified when it was built.
    fn mark_verified(&self, hash: &str, version: Version) {
        lock(&self.verified).insert((hash.to_owned(), version), Arc::new(Mutex::new(true)));
    }

    /// Whether a process holds the set, this one or another.
    pub(crate) fn is_held(&self, hash: &str) -> bool {
        matches!(
            self.take(hash, FlockOperation::NonBlockingLockExclusive),
            Err(StoreError::InUse(_))
        )
    }

    /// Notes that the set was used now.
    pub(crate) fn used(&self, hash: &str) {
        let Ok(path) = self.set_folder(hash).map(|folder| folder.join(USED)) else { return };
        let now = SystemTime::now();
        let noted = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let is_new =
            noted.is_ok_and(|noted| now.duration_since(noted).is_ok_and(|ago| ago < USES_APART));
        if is_new {
            return;
        }
        let file = File::options().write(true).open(&path);
        if let Err(error) = file.and_then(|file| file.set_modified(now))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "the use of a set of packages was not noted");
        }
    }

    /// Bytes of all sets. Files that several have in common count once. Reads every folder, so it takes a while.
    pub(crate) fn bytes(&self) -> u64 {
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        // One after the other, so that a set that is removed meanwhile does not hide others.
        for set in fs::read_dir(self.sets_folder()).into_iter().flatten().flatten() {
            bytes += tree::disk_bytes(&set.path(), &mut seen);
        }
        bytes
    }

    /// The lock for adding and removing. It is held briefly.
    fn lock_all(&self) -> Result<File, StoreError> {
        self.lock_file_of("lock", FlockOperation::LockExclusive)
    }

    fn lock_file_of(&self, name: &str, operation: FlockOperation) -> Result<File, StoreError> {
        let path = self.folder.join(name);
        let mut options = File::options();
        let file = options.create(true).append(true).custom_flags(PLAIN).open(&path).at(&path)?;
        locks::take(&file, &path, operation, name)?;
        Ok(file)
    }
}

/// Reads a `set.json`; `None` if there is none.
fn read_set<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let text = match read_plain(path, MAX_SET_FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(path, error)),
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| StoreError::io(path, io::Error::other(error)))
}

/// The errors of a file that is another kind of file, or too long.
const NOT_PLAIN: [io::ErrorKind; 2] = [io::ErrorKind::InvalidData, io::ErrorKind::FileTooLarge];

/// Reads a plain file of at most `most` bytes. Other processes that write to the volume may put there something else.
fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(PLAIN).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a plain file"));
    }
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let message = format!("the file has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(content)
}

/// The content of a `set.json`, with the hash of the list of the set's files.
fn text_of(set: &StoredSet, manifest: &str) -> String {
    let mut text = serde_json::to_value(set).expect("plain data is JSON");
    text["manifest"] = hash_of(manifest.as_bytes()).into();
    format!("{text:#}")
}

/// Verifies that a set's files are as they were when it was built, and that a node with the key has built it.
fn verify(folder: &Path, set: &StoredSet, key: Option<&StoreKey>) -> Result<(), StoreError> {
    let changed = |what: String| StoreError::Changed { hash: set.hash.clone(), what };
    let path = folder.join(SET_FILE);
    let content = match read_plain(&path, MAX_SET_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NoSuchSet(set.hash.clone()));
        }
        content => content.at(&path)?,
    };
    if let Some(key) = key
        && !key.is_sealed(folder, &content)?
    {
        return Err(changed("it has no seal of a node with the key of this one".to_owned()));
    }
    // What was sealed is also what the caller has read of it.
    let described: Result<StoredSet, _> = serde_json::from_slice(&content);
    if described.map_or(true, |described| described != *set) {
        return Err(changed("its description is another".to_owned()));
    }
    let file: Result<ManifestHash, _> = serde_json::from_slice(&content);
    let file = file.map_err(|error| StoreError::io(&path, io::Error::other(error)))?;
    let path = folder.join(MANIFEST);
    let manifest = match read_plain(&path, MAX_MANIFEST).map(String::from_utf8) {
        Ok(Ok(manifest)) if hash_of(manifest.as_bytes()) == file.manifest => manifest,
        Err(error) if !NOT_PLAIN.contains(&error.kind()) => {
            return Err(StoreError::io(&path, error));
        }
        _ => return Err(changed("its list of files is another".to_owned())),
    };
    let files = folder.join(FILES);
    let entries = match tree::entries(&files) {
        Ok(entries) => entries,
        Err(tree::TreeError::Refused(what)) => return Err(changed(what)),
        Err(tree::TreeError::Store(error)) => return Err(error),
    };
    match tree::difference(&manifest, &tree::manifest(&files, &entries)?) {
        None => Ok(()),
        Some(what) => Err(changed(what)),
    }
}

fn hash_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A unique name for a folder.
fn new_name() -> String {
    let mut random = [0; 8];
    if getrandom::fill(&mut random).is_err() {
        // Without random numbers, time and process are enough to be different.
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        random =
            u64::try_from(time.as_nanos() & u128::from(u64::MAX)).unwrap_or_default().to_le_bytes();
    }
    format!("{}-{}", std::process::id(), hex(&random))
}

/// A hash, shortened so that it still differs from others.
pub(crate) fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

#[cfg(test)]
mod tests;
