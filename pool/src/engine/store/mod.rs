//! The image store of the embedded engine: images are unpacked once, shared by all sandboxes, and found by
//! name or digest.
//!
//! # Theory of operation
//!
//! | in the directory of a store | what it is |
//! |---|---|
//! | `images/<hex>/root` | the root file system of the image with this digest |
//! | `images/<hex>/image.json` | its description |
//! | `names.json` | the digest for each name |
//! | `staging/<uuid>` | content that is being fetched, unpacked or removed |
//! | `lock` | held while any of the first three changes |
//!
//! An image comes from a [registry](Store::pull), from a [file](Store::import) or from a caller who
//! [fills a root](Store::stage). It is built in `staging` and moved to `images` by one rename, so that it
//! appears whole or not at all; it is removed the same way. Its digest is that of its configuration, which
//! names its layers, if it has one.
//!
//! Locks (`flock`) show what is in use, because they end with their process. A staging directory is locked
//! exclusively by the process that works on it; an image is [held](Stored::hold) with a shared lock while
//! sandboxes use it. [`prune`](Store::prune) removes what is not locked. The store's own lock is held only for
//! renames, never while something is unpacked or a tree is removed.
//!
//! # Layout
//!
//! - `import`, `pull`: where images come from; `blobs`, `layout`, `registry`, `credentials` help them.
//! - `layers` → `unpack` → `tree`: layers become a root. `tar_reader` reads them, `path` and `limits` say what
//!   is allowed in them, `check` checks the finished root.
//! - `stage`: how an image gets into the store; `copy` and `content` for one that is based on another.
//! - `stored`, `mountpoints`: what sandboxes are made from. `names`, `description`, `digest`: its metadata.
//! - `blocking_job`: runs all of this on threads that may block.

mod blobs;
mod blocking_job;
mod check;
mod compression;
mod content;
mod copy;
#[cfg(not(fuzzing))]
mod credentials;
mod description;
mod digest;
mod error;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod import;
mod layers;
mod layout;
mod limits;
mod mountpoints;
mod names;
mod path;
#[cfg(not(fuzzing))]
mod pull;
#[cfg(not(fuzzing))]
mod registry;
mod remove;
mod room;
mod stage;
mod stored;
mod tar_reader;
mod tree;
mod unpack;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use tokio_util::task::TaskTracker;

pub use self::description::Description;
pub(super) use self::digest::Digest;
use self::error::IoContext;
pub use self::error::StoreError;
#[cfg(not(fuzzing))]
pub(crate) use self::error::is_full;
pub use self::limits::Limits;
#[cfg(not(fuzzing))]
pub(crate) use self::mountpoints::{DIRECTORIES as MOUNTED, HOSTNAME, HOSTS, RESOLV_CONF};
pub use self::room::{free, make_room};
pub use self::stage::Staged;
pub use self::stored::{Held, Stored};

const IMAGES: &str = "images";
const STAGING: &str = "staging";
const LOCK: &str = "lock";

/// A directory of images. Clones are the same store, and so are stores of other processes in the same
/// directory.
#[derive(Debug, Clone)]
pub struct Store {
    directory: Arc<Path>,
    limits: Limits,
    /// Counts what this process has in `staging`.
    unfinished: TaskTracker,
}

/// An image and its names.
#[derive(Debug, Clone)]
pub struct NamedImage {
    /// The image.
    pub image: Stored,
    /// Its names; the next [`Store::prune`] removes an image without any.
    pub names: Vec<String>,
}

impl Store {
    /// The store in a directory, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let (directory, limits) = (directory.into().into(), Limits::default());
        Self { directory, limits, unfinished: TaskTracker::new() }
    }

    /// The same store with other limits for new images.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Waits until `staging` has nothing left from this process or from clones of this store. Canceled work is cleaned up in
    /// the background.
    pub async fn settle(&self) {
        self.unfinished.close();
        self.unfinished.wait().await;
    }

    /// Directory of the images: each root is at [`Stored::relative_root`] in it.
    pub fn images(&self) -> PathBuf {
        self.directory.join(IMAGES)
    }

    /// Looks an image up by its name or its full digest.
    ///
    /// # Errors
    ///
    /// [`StoreError::Name`], and [`StoreError::Io`] if the store can't be read.
    pub fn find(&self, name: &str) -> Result<Option<Stored>, StoreError> {
        if let Some(digest) = Digest::parse(name) {
            return self.read(&digest);
        }
        let name = names::normalize(name)?;
        let names = names::read(&self.directory)?;
        names.get(&name).map_or(Ok(None), |digest| self.get(digest))
    }

    /// Looks an image up by its digest.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the store can't be read.
    pub fn get(&self, digest: &str) -> Result<Option<Stored>, StoreError> {
        Digest::parse(digest).map_or(Ok(None), |digest| self.read(&digest))
    }

    /// All images, in the order of their digests.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the store can't be read.
    pub fn list(&self) -> Result<Vec<NamedImage>, StoreError> {
        let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, digest) in names::read(&self.directory)? {
            named.entry(digest).or_default().push(name);
        }
        let mut listed = Vec::new();
        for digest in self.digests()? {
            if let Some(image) = self.read(&digest)? {
                let names = named.remove(digest.as_str()).unwrap_or_default();
                listed.push(NamedImage { image, names });
            }
        }
        Ok(listed)
    }

    fn read(&self, digest: &Digest) -> Result<Option<Stored>, StoreError> {
        Stored::read(self.images().join(digest.hex()))
    }

    fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        let mut digests = Vec::new();
        for path in listing(&self.images())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            digests.extend(Digest::parse(&format!("sha256:{name}")));
        }
        digests.sort_unstable();
        Ok(digests)
    }

    fn staging(&self) -> PathBuf {
        self.directory.join(STAGING)
    }

    /// Locks the store against changes by others, until the returned file is dropped.
    fn lock(&self) -> Result<File, StoreError> {
        let lock = || -> io::Result<File> {
            fs::create_dir_all(&self.directory)?;
            let path = self.directory.join(LOCK);
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        };
        lock().at("lock the store in", &self.directory)
    }
}

/// The paths in a directory, which need not exist yet.
fn listing(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let read = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.at("list", directory)?,
    };
    read.map(|entry| entry.map(|entry| entry.path()).at("list", directory)).collect()
}
