//! Removal: one rename moves a folder out of the way, and then its files are deleted, which can take a while. Files that can't be
//! deleted stay in `removed` until the next sweep.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use isolator_pool::folders;
use isolator_pool::lock::lock;
use rustix::fs::{FlockOperation, flock};

use super::{AtPath as _, Store, StoreError, new_name};

/// The file in the folder of a build whose lock says that a process builds there.
pub(super) const BUILDING_LOCK: &str = "lock";

impl Store {
    /// Removes a set. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if this process or another holds it, and [`StoreError::Left`] if it is gone, but its files are not.
    pub(crate) fn remove(&self, hash: &str) -> Result<bool, StoreError> {
        let folder = self.set_folder(hash)?;
        let all = self.lock_all()?;
        let held = match self.take(hash, FlockOperation::NonBlockingLockExclusive) {
            // A folder without its file is not a set anymore, so no process uses it.
            Err(StoreError::NoSuchSet(_)) if folder.exists() => None,
            Err(StoreError::NoSuchSet(_)) => return Ok(false),
            taken => Some(taken?),
        };
        let away = self.folder.join("removed").join(new_name());
        fs::rename(&folder, &away).at(&folder)?;
        drop((held, all));
        lock(&self.verified).retain(|(known, _), _| known != hash);
        remove_folder(&away)?;
        Ok(true)
    }

    /// Removes the folders of processes that were killed while they built or removed a set, and those that could not be removed before.
    ///
    /// # Errors
    ///
    /// The last one; those before it are logged. Everything that can be removed is.
    pub(crate) fn sweep(&self) -> Result<(), StoreError> {
        let mut swept = self.move_leftovers();
        let removed = self.folder.join("removed");
        for entry in fs::read_dir(&removed).at(&removed)? {
            let path = entry.at(&removed)?.path();
            if let Err(error) = remove_folder(&path)
                && let Err(before) = std::mem::replace(&mut swept, Err(error))
            {
                tracing::warn!(error = %before, "what is left of packages was not removed");
            }
        }
        swept
    }

    /// Moves the folders of builds whose process is dead out of the way, and the single cache of earlier versions.
    fn move_leftovers(&self) -> Result<(), StoreError> {
        let _all = self.lock_all()?;
        let mut moved = Ok(());
        let mut move_away = |path: &Path| {
            let away = self.folder.join("removed").join(new_name());
            if let Err(error) = fs::rename(path, away)
                && error.kind() != io::ErrorKind::NotFound
            {
                moved = Err(StoreError::io(path, error));
            }
        };
        for tool in ["uv", "npm"] {
            move_away(&self.caches().join(tool));
        }
        let building = self.folder.join("building");
        for entry in fs::read_dir(&building).at(&building)? {
            let path = entry.at(&building)?.path();
            if !is_alive(&path.join(BUILDING_LOCK)) {
                move_away(&path);
            }
        }
        moved
    }
}

/// Whether a process may still build in the folder with this lock. A process that makes such a folder holds the lock of the store
/// until it has locked the folder. Only a lock that is free, or missing, shows that its process is dead: another failure does not.
fn is_alive(path: &Path) -> bool {
    // On NFS, only a file that can be written can be locked for one process alone.
    match File::options().read(true).write(true).open(path) {
        Ok(own) => flock(&own, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(error) => {
            ![io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
        }
    }
}

/// Deletes a folder that is out of the way. A tool that was killed may write into it for a moment.
pub(super) fn remove_folder(folder: &Path) -> Result<(), StoreError> {
    const TRIES: u32 = 5;
    let mut attempt = 1;
    loop {
        match folders::remove(folder) {
            Ok(_) => return Ok(()),
            Err(error) if attempt == TRIES => {
                return Err(StoreError::Left { folder: folder.to_owned(), error });
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
        attempt += 1;
    }
}

/// The same, but errors are only logged.
pub(super) fn remove_or_warn(folder: &Path) {
    if let Err(error) = remove_folder(folder) {
        tracing::warn!(%error, "what is left of a build was not removed");
    }
}
