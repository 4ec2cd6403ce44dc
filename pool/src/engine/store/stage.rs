//! Staging: an image is built in its own directory and put into the store in one step.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, syncfs};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::blocking_job::{BlockingJob, run_blocking, run_job};
use super::description::Description;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::stored::{ROOT, Stored};
use super::tree::{self, Root};
use super::{Store, check, content, copy, mountpoints, names};
use crate::folders;

/// The directory that becomes the image's.
const IMAGE: &str = "image";
const BROKEN: &str = "broken";

/// The name of an image that a caller has filled, in messages.
const BUILT: &str = "what was built";

/// An unfinished image. Dropping it removes it.
#[derive(Debug)]
pub struct Staged {
    guard: Option<Guard>,
}

/// A locked directory of `staging`.
#[derive(Debug)]
struct Guard {
    directory: PathBuf,
    _lock: File,
    _unfinished: TaskTrackerToken,
}

impl Store {
    /// Begins an image. The caller fills its root, which is empty.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the store can't be written.
    pub async fn stage(&self) -> Result<Staged, StoreError> {
        let store = self.clone();
        run_blocking(move || store.stage_now()).await
    }

    /// Puts a filled image into the store. Its digest is that of its content. Device nodes and other special files are refused,
    /// and so is anything in the place of a mount point; set-ID bits are removed. The next [`Store::prune`] removes an image
    /// without names, unless it is [held](Stored::hold).
    ///
    /// # Errors
    ///
    /// [`StoreError::Name`], [`StoreError::Unusable`], and [`StoreError::Io`].
    pub async fn commit(
        &self,
        staged: Staged,
        description: Description,
        names: &[String],
    ) -> Result<Stored, StoreError> {
        let names =
            names.iter().map(|name| names::normalize(name)).collect::<Result<Vec<_>, _>>()?;
        let description = description.check(BUILT)?;
        let store = self.clone();
        run_job(&|_| {}, move |job| {
            staged.finish(|staged| {
                let root = staged.open()?;
                let size = check::check(&root, &mut |_, _| Ok(()))?;
                let (description, _) = mountpoints::prepare(&root, BUILT, description)?;
                let digest = content::digest(&root, &description, job)?;
                let image = Stored::new(digest.as_str(), size, description);
                store.commit_now(staged, &digest, &image, &names, job)
            })
        })
        .await
    }

    pub(super) fn stage_now(&self) -> Result<Staged, StoreError> {
        let directory = self.staging().join(uuid::Uuid::new_v4().to_string());
        let stage = || -> io::Result<Staged> {
            fs::create_dir_all(self.staging())?;
            // No other user may look into an unfinished image.
            DirBuilder::new().mode(0o700).create(&directory)?;
            let staged = self
                .hold(directory.clone())?
                .ok_or_else(|| io::Error::other("another process has locked it"))?;
            for path in [directory.join(IMAGE), staged.root()] {
                fs::create_dir(&path)?;
                // Whatever the umask is: sandboxes read it as another user.
                fs::set_permissions(&path, Permissions::from_mode(tree::DIRECTORY_MODE))?;
            }
            Ok(staged)
        };
        // Until it is locked, the directory looks like one that a dead process left.
        let lock = self.lock()?;
        let staged = stage().at("make", &directory)?;
        let dead = self.dead()?;
        drop(lock);
        // A process that was killed in the middle of a build has left hundreds of megabytes.
        for left in dead {
            left.discard_now();
        }
        Ok(staged)
    }

    /// Moves a finished image into the store and names it. If another process has added the same image, that one
    /// is used.
    pub(super) fn commit_now(
        &self,
        staged: &Staged,
        digest: &Digest,
        image: &Stored,
        names: &[String],
        job: &BlockingJob,
    ) -> Result<Stored, StoreError> {
        let grown = staged.directory().join(IMAGE);
        let describe = || -> io::Result<()> {
            image.write(&grown)?;
            // Otherwise a power failure could leave an image of empty files.
            Ok(syncfs(File::open(&grown)?)?)
        };
        describe().at("write", &grown)?;
        let lock = self.lock()?;
        job.check_canceled()?;
        let directory = self.images().join(digest.hex());
        let present = self.read(digest)?;
        // The same files can come from another recipe, by which they must be known from now on.
        if present
            .as_ref()
            .is_some_and(|it| it.description.built_from != image.description.built_from)
        {
            image.write(&directory).at("describe", &directory)?;
        }
        if present.is_none() {
            let appear = || -> io::Result<()> {
                fs::create_dir_all(self.images())?;
                match fs::rename(&directory, staged.directory().join(BROKEN)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    // A damaged image was there, because a part of it was deleted. It goes with the staging directory.
                    _ => {}
                }
                fs::rename(&grown, &directory)?;
                File::open(self.images())?.sync_all()
            };
            appear().at("make", &directory)?;
        }
        self.name_locked(digest, names)?;
        let stored = self.read(digest)?;
        drop(lock);
        stored.ok_or_else(|| StoreError::NoSuchImage(digest.as_str().to_owned()))
    }

    /// Gives an image of the store more names. `None` if it is not there.
    pub(super) fn name_now(
        &self,
        digest: &Digest,
        names: &[String],
    ) -> Result<Option<Stored>, StoreError> {
        let _lock = self.lock()?;
        let stored = self.read(digest)?;
        if stored.is_some() {
            self.name_locked(digest, names)?;
        }
        Ok(stored)
    }

    /// Locks a directory of `staging`, unless another process has.
    pub(super) fn hold(&self, directory: PathBuf) -> io::Result<Option<Staged>> {
        let lock = lock_directory(&directory)?;
        Ok(lock.map(|lock| self.staged(directory, lock)))
    }

    /// A directory of `staging` with its lock.
    pub(super) fn staged(&self, directory: PathBuf, lock: File) -> Staged {
        let _unfinished = self.unfinished.token();
        Staged { guard: Some(Guard { directory, _lock: lock, _unfinished }) }
    }

    fn name_locked(&self, digest: &Digest, new: &[String]) -> Result<(), StoreError> {
        let mut names = names::read(&self.directory)?;
        let before = names.clone();
        for name in new {
            names.insert(name.clone(), digest.as_str().to_owned());
        }
        if names == before { Ok(()) } else { names::write(&self.directory, &names) }
    }
}

impl Staged {
    /// The directory that becomes the image's root.
    pub fn root(&self) -> PathBuf {
        self.directory().join(IMAGE).join(ROOT)
    }

    /// Fills the root, which is empty, with a copy of another image's.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSuchImage`] if the other is gone, and [`StoreError::Io`].
    pub async fn copy_from(self, other: &Stored) -> Result<Self, StoreError> {
        let held = other.hold()?;
        run_job(&|_| {}, move |job| {
            let path = held.image().root();
            let from = Root::open(&path).at("open", &path)?;
            match self.open().and_then(|to| copy::copy(&from, &to, job)) {
                Ok(()) => Ok(self),
                Err(error) => self.finish(|_| Err(error)),
            }
        })
        .await
    }

    /// Makes the root ready for a script that runs in it: with all mount points, and with an empty directory of
    /// this name in place of whatever is there. Callers may write below that directory by its path, because no
    /// link of the image is on it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if the image has no room for the mount points, and [`StoreError::Io`].
    pub async fn begin_build(self, directory: &str) -> Result<Self, StoreError> {
        let directory = directory.to_owned();
        run_blocking(move || match self.make_build_directory(&directory) {
            Ok(()) => Ok(self),
            Err(error) => self.finish(|_| Err(error)),
        })
        .await
    }

    fn make_build_directory(&self, name: &str) -> Result<(), StoreError> {
        let root = self.open()?;
        mountpoints::prepare(&root, "what the build starts from", Description::default())?;
        let made = folders::remove_at(root.fd().as_fd(), name.as_ref())
            .and_then(|_| Ok(tree::make_directory(root.fd(), name.as_ref())?));
        made.map(drop).at("make", &self.root().join(name))
    }

    pub(super) fn open(&self) -> Result<Root, StoreError> {
        Root::open(&self.root()).at("open", &self.root())
    }

    /// The directory for content that is fetched and not unpacked yet.
    pub(super) fn directory(&self) -> &Path {
        self.guard.as_ref().map_or(Path::new(""), |guard| &guard.directory)
    }

    /// Calls `last`, then removes what is left in `staging`, and returns the result of `last`, even if something stays.
    pub(super) fn finish<T>(
        self,
        last: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = last(&self);
        self.discard_now();
        done
    }

    /// Discards the image and its files. The next prune removes files that stay.
    pub async fn discard(self) {
        // It fails only if the process ends, and then the next prune does it.
        let _ = run_blocking(move || {
            self.discard_now();
            Ok(())
        })
        .await;
    }

    /// The same, on a thread that may block.
    pub(super) fn discard_now(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.remove_or_warn();
        }
    }

    /// Removes it, and returns how many bytes that freed.
    pub(super) fn remove_now(mut self) -> Result<u64, StoreError> {
        self.guard.take().map_or(Ok(0), |guard| guard.remove())
    }
}

impl Guard {
    fn remove(self) -> Result<u64, StoreError> {
        folders::remove(&self.directory).at("remove", &self.directory)
    }

    fn remove_or_warn(self) {
        if let Err(error) = self.remove() {
            tracing::warn!(
                "an unfinished image could not be removed; the next prune tries again: {error}"
            );
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let remove = move || guard.remove_or_warn();
        // A tree may be large. If the runtime ends first, `prune` removes it later.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// Locks a directory exclusively, unless another process has.
pub(super) fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = File::from(open(path, flags, Mode::empty())?);
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
