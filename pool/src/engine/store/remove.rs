//! Removing images from the store.

use std::fs::{self, File};
use std::io;

use super::blocking_job::run_blocking;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::stage::{Staged, lock_directory};
use super::{Store, listing, names};
use crate::engine::images::Pruned;

impl Store {
    /// Removes a name of an image. With its last name, or if given its digest, the image is removed.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSuchImage`], and [`StoreError::InUse`] while the image is held.
    pub async fn remove(&self, name_or_digest: &str) -> Result<(), StoreError> {
        let (store, name) = (self.clone(), name_or_digest.to_owned());
        run_blocking(move || store.remove_now(&name)).await
    }

    /// Removes images that have no name and are not held, and the leftovers of dead processes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if something can't be removed. Everything else is removed; the next call tries again.
    pub async fn prune(&self) -> Result<Pruned, StoreError> {
        let store = self.clone();
        run_blocking(move || store.prune_now()).await
    }

    fn remove_now(&self, name: &str) -> Result<(), StoreError> {
        let lock = self.lock()?;
        let mut names = names::read(&self.directory)?;
        let none = || StoreError::NoSuchImage(name.to_owned());
        let digest = match Digest::parse(name) {
            Some(digest) => {
                self.read(&digest)?.ok_or_else(none)?;
                names.retain(|_, other| other != digest.as_str());
                digest
            }
            None => {
                let digest = names.remove(&names::normalize(name)?).ok_or_else(none)?;
                Digest::parse(&digest).ok_or_else(none)?
            }
        };
        let last = !names.values().any(|other| other == digest.as_str());
        let held = if last { self.lock_image(&digest)? } else { None };
        if last && held.is_none() && self.read(&digest)?.is_some() {
            return Err(StoreError::InUse(name.to_owned()));
        }
        // The name is removed first: an image without one is garbage, which `prune` removes.
        names::write(&self.directory, &names)?;
        let gone = held.map(|held| self.move_to_staging(&digest, held)).transpose()?;
        drop(lock);
        gone.map_or(Ok(0), Staged::remove_now).map(drop)
    }

    fn prune_now(&self) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned::default();
        let mut garbage = Vec::new();
        {
            let _lock = self.lock()?;
            let names = names::read(&self.directory)?;
            garbage.extend(self.dead()?);
            pruned.images = garbage.len();
            for digest in self.digests()? {
                if names.values().any(|named| named == digest.as_str()) {
                    continue;
                }
                if let Some(held) = self.lock_image(&digest)? {
                    garbage.push(self.move_to_staging(&digest, held)?);
                    pruned.images += 1;
                }
            }
        }
        let mut failed = Ok(pruned);
        for staged in garbage {
            match staged.remove_now() {
                Ok(bytes) => pruned.bytes += bytes,
                Err(error) => {
                    tracing::warn!(
                        "an image could not be removed completely; the next prune tries again: {error}"
                    );
                    failed = Err(error);
                }
            }
        }
        failed.map(|_| pruned)
    }

    /// Staging directories that no process holds.
    pub(super) fn dead(&self) -> Result<Vec<Staged>, StoreError> {
        let mut dead = Vec::new();
        for path in listing(&self.staging())? {
            match self.hold(path.clone()) {
                // Its owner has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                staged => dead.extend(staged.at("lock", &path)?),
            }
        }
        Ok(dead)
    }

    /// Locks an image, unless it is held.
    fn lock_image(&self, digest: &Digest) -> Result<Option<File>, StoreError> {
        let path = self.images().join(digest.hex());
        match lock_directory(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            locked => locked.at("lock", &path),
        }
    }

    /// Moves an image to `staging`. It stays locked, so that no other process removes it as garbage.
    fn move_to_staging(&self, digest: &Digest, held: File) -> Result<Staged, StoreError> {
        let from = self.images().join(digest.hex());
        let to = self.staging().join(uuid::Uuid::new_v4().to_string());
        fs::create_dir_all(self.staging()).at("make", &self.staging())?;
        fs::rename(&from, &to).at("move", &from)?;
        Ok(self.staged(to, held))
    }
}
