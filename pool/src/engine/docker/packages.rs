//! The volume with the sets of packages of this instance.
//!
//! An engine can't mount something in a container that exists, so every container that may need a set has the whole volume,
//! read-only. Each set is in a folder whose name can't be guessed, in a folder that can't be listed. A set is uploaded through
//! a container that is never started, and removed by one that runs nothing but our runner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::models::HostConfig;
use bollard::query_parameters::WaitContainerOptionsBuilder;
use futures_util::StreamExt;
use isolator_runner::paths;
use tokio::time::timeout;

use super::DockerEngine;
use super::container::Access;
use super::helper::{Helper, NEVER_STARTED};
use super::set_archive;
use super::volume::Volume;
use crate::engine::instance::Instance;
use crate::engine::{Call, EngineError, Image, refused};
use crate::lock::lock;
use crate::packages::PackageSet;

/// How long an upload may take, besides the time for its size at the slowest speed, in bytes per second.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);
const SLOWEST: u64 = 1 << 20;

/// Memory and processes of the container that removes a set.
const REMOVER_MEMORY: i64 = 256 << 20;
const REMOVER_PIDS: i64 = 8;

/// The volume of one instance.
pub(super) struct PackagesVolume {
    pub(super) volume: Volume,
    /// By the hash of a set. Each is locked while it is uploaded or removed.
    sets: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Brought>>>>>,
    /// The folders of those that are there, by their hash.
    folders: Mutex<HashMap<String, String>>,
}

/// A set that is in the volume.
struct Brought {
    folder: String,
    /// An image from which a helper can be made.
    image: String,
}

impl PackagesVolume {
    pub(super) fn new(instance: &Instance) -> Self {
        let volume = Volume::new(instance, "packages", paths::PACKAGES);
        Self { volume, sets: Mutex::default(), folders: Mutex::default() }
    }

    /// Where a set is in a sandbox.
    pub(super) fn path(&self, set: &PackageSet) -> Option<String> {
        let folders = lock(&self.folders);
        folders.get(&set.hash).map(|folder| format!("{}/{folder}", paths::PACKAGE_SETS))
    }

    /// Makes the next call upload the set again.
    pub(super) fn forget(&self, set: &PackageSet) {
        lock(&self.folders).remove(&set.hash);
        lock(&self.sets).remove(&set.hash);
    }

    fn slot(&self, hash: &str) -> Arc<tokio::sync::Mutex<Option<Brought>>> {
        Arc::clone(lock(&self.sets).entry(hash.to_owned()).or_default())
    }

    /// Makes the folder of all sets before a container gets the volume. Programs see by the folder where to look for packages.
    pub(super) async fn begin(
        &self,
        engine: &DockerEngine,
        image: &Image,
    ) -> Result<(), EngineError> {
        self.volume.fill(engine, image, set_archive::empty).await
    }

    /// Uploads a set, unless this process has done so.
    pub(super) async fn provide(
        &self,
        engine: &DockerEngine,
        set: &PackageSet,
        image: &Image,
    ) -> Result<(), EngineError> {
        if self.path(set).is_some() {
            return Ok(());
        }
        let slot = self.slot(&set.hash);
        let mut brought = slot.lock().await;
        if brought.is_some() {
            return Ok(());
        }
        self.volume.create(engine, Call::Provide).await?;
        // 122 random bits.
        let folder = uuid::Uuid::new_v4().simple().to_string();
        let helper = Helper::new(engine);
        let uploaded = self.upload(engine, &helper, set, image, &folder).await;
        let removed = helper.remove().await;
        uploaded?;
        removed?;
        lock(&self.folders).insert(set.hash.clone(), folder.clone());
        *brought = Some(Brought { folder, image: image.digest.clone() });
        Ok(())
    }

    async fn upload(
        &self,
        engine: &DockerEngine,
        helper: &Helper<'_>,
        set: &PackageSet,
        image: &Image,
        folder: &str,
    ) -> Result<(), EngineError> {
        let mounts = Some(vec![self.volume.mount(engine, Access::ReadWrite)]);
        let host = HostConfig { mounts, ..HostConfig::default() };
        helper.create(&image.digest, NEVER_STARTED, host, Call::Provide).await?;
        let archive = set_archive::read(set.folder.clone(), folder);
        let (bytes, archive) = archive.await.map_err(|error| {
            let message = format!("{} can't be read: {error}", set.folder.display());
            refused(Call::Provide, message)
        })?;
        let uploaded = helper.upload(paths::PACKAGES, archive, Call::Provide);
        let deadline = UPLOAD_TIMEOUT + Duration::from_secs(bytes / SLOWEST);
        let late = |_| Err(EngineError::Deadline { call: Call::Provide, deadline });
        timeout(deadline, uploaded).await.unwrap_or_else(late)
    }

    /// Removes a set that this process has uploaded.
    pub(super) async fn withdraw(
        &self,
        engine: &DockerEngine,
        hash: &str,
    ) -> Result<(), EngineError> {
        let slot = self.slot(hash);
        let mut brought = slot.lock().await;
        lock(&self.folders).remove(hash);
        if let Some(Brought { folder, image }) = &*brought {
            let helper = Helper::new(engine);
            let ran = self.run_remover(engine, &helper, image, folder).await;
            let removed = helper.remove().await;
            ran?;
            removed?;
            *brought = None;
        }
        lock(&self.sets).remove(hash);
        Ok(())
    }

    async fn run_remover(
        &self,
        engine: &DockerEngine,
        helper: &Helper<'_>,
        image: &str,
        folder: &str,
    ) -> Result<(), EngineError> {
        let failed = engine.failed(Call::Withdraw);
        let dialect = engine.dialect.dialect(engine.docker().await?).await?;
        let runner = engine.runner.volume.mount(engine, Access::ReadOnly);
        let host = HostConfig {
            mounts: Some(vec![runner, self.volume.mount(engine, Access::ReadWrite)]),
            cap_drop: Some(vec!["ALL".to_owned()]),
            // No other user may list or change the folder of all sets.
            cap_add: Some(vec!["DAC_OVERRIDE".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned(), dialect.seccomp.clone()]),
            readonly_rootfs: Some(true),
            memory: Some(REMOVER_MEMORY),
            memory_swap: Some(REMOVER_MEMORY),
            pids_limit: Some(REMOVER_PIDS),
            ..HostConfig::default()
        };
        let command = [paths::RUNNER, "remove", folder];
        helper.create(image, &command, host, Call::Withdraw).await?;
        let docker = engine.docker().await?;
        let name = helper.name.as_str();
        docker.start_container(name, None).await.map_err(&failed)?;
        let options = WaitContainerOptionsBuilder::new().build();
        // An exit code other than zero is an error here.
        match docker.wait_container(name, Some(options)).next().await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(failed(error)),
            None => {
                let cause = "its helper was removed by another client";
                Err(refused(Call::Withdraw, cause))
            }
        }
    }
}
