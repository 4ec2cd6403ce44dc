//! The volumes of an instance, and the one that brings the runner and its files into every container.
//!
//! A volume works with any image and with an engine on another machine, where a bind mount of a file of this machine would not. It is
//! filled through a container that is never started.

use std::collections::HashMap;

use bollard::models::{HostConfig, Mount, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder};
use bytes::Bytes;
use futures_util::stream;
use isolator_runner::paths;

use super::container::{self, Access};
use super::helper::{Helper, NEVER_STARTED};
use super::{DockerEngine, error};
use crate::engine::instance::{Instance, LABEL};
use crate::engine::{Call, EngineError, Image, LabelFilter};

/// A volume of one instance, at the same path in every container.
pub(super) struct Volume {
    name: String,
    path: &'static str,
    /// Creation time of the volume that this process filled. Locked while the volume is being filled.
    filled: tokio::sync::Mutex<Option<String>>,
}

impl Volume {
    /// The volume with this purpose.
    pub(super) fn new(instance: &Instance, purpose: &str, path: &'static str) -> Self {
        let name = format!("isolator-{}-{purpose}", instance.short_id());
        Self { name, path, filled: tokio::sync::Mutex::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The volume in a container.
    pub(super) fn mount(&self, engine: &DockerEngine, access: Access) -> Mount {
        container::mount((&self.name, self.path), &engine.all_labels(), access)
    }

    /// Creates the volume, if there is none.
    pub(super) async fn create(
        &self,
        engine: &DockerEngine,
        call: Call,
    ) -> Result<(), EngineError> {
        let request = VolumeCreateRequest {
            name: Some(self.name.clone()),
            labels: Some(engine.all_labels()),
            ..VolumeCreateRequest::default()
        };
        let created = engine.docker().await?.create_volume(request).await;
        created.map(drop).map_err(engine.failed(call))
    }

    /// Creates the volume and unpacks an archive in it, unless this process has done so and the volume still exists.
    pub(super) async fn fill(
        &self,
        engine: &DockerEngine,
        image: &Image,
        archive: impl FnOnce() -> Bytes,
    ) -> Result<(), EngineError> {
        let mut filled = self.filled.lock().await;
        if filled.is_some() && *filled == self.made(engine).await? {
            return Ok(());
        }
        *filled = None;
        self.create(engine, Call::Prepare).await?;
        let helper = Helper::new(engine);
        let unpacked = self.unpack(engine, &helper, image, archive()).await;
        let removed = helper.remove().await;
        unpacked?;
        removed?;
        *filled = self.made(engine).await?;
        Ok(())
    }

    async fn unpack(
        &self,
        engine: &DockerEngine,
        helper: &Helper<'_>,
        image: &Image,
        archive: Bytes,
    ) -> Result<(), EngineError> {
        let mounts = Some(vec![self.mount(engine, Access::ReadWrite)]);
        let host = HostConfig { mounts, ..HostConfig::default() };
        helper.create(&image.digest, NEVER_STARTED, host, Call::Prepare).await?;
        helper.upload(self.path, stream::iter([Ok(archive)]), Call::Prepare).await
    }

    /// Its creation time, if it exists. If the volume was removed, the engine creates an empty one when a container mounts it; the time
    /// shows that.
    async fn made(&self, engine: &DockerEngine) -> Result<Option<String>, EngineError> {
        match engine.docker().await?.inspect_volume(&self.name).await {
            Ok(volume) => Ok(Some(format!("{:?}", volume.created_at))),
            Err(error) if error::status(&error) == Some(404) => Ok(None),
            Err(error) => Err(engine.failed(Call::Prepare)(error)),
        }
    }
}

/// The volume with the runner.
pub(super) struct RunnerVolume {
    pub(super) volume: Volume,
    runner: &'static [u8],
}

impl RunnerVolume {
    pub(super) fn new(instance: &Instance, runner: &'static [u8]) -> Self {
        Self { volume: Volume::new(instance, "runner", paths::DIRECTORY), runner }
    }

    /// Brings the runner and its files into the volume.
    pub(super) async fn fill(
        &self,
        engine: &DockerEngine,
        image: &Image,
    ) -> Result<(), EngineError> {
        self.volume.fill(engine, image, || self.tar().into()).await
    }

    fn tar(&self) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        // Another volume is mounted there.
        let place = paths::PACKAGES.strip_prefix(paths::DIRECTORY).unwrap_or_default();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive
            .append_data(&mut header, place.trim_start_matches('/'), std::io::empty())
            .expect("writing to a vector can't fail");
        for file in paths::files(self.runner) {
            let mut header = tar::Header::new_gnu();
            header.set_mode(file.mode);
            header.set_size(file.content.len() as u64);
            archive
                .append_data(&mut header, file.path, file.content)
                .expect("writing to a vector can't fail");
        }
        archive.into_inner().expect("writing to a vector can't fail")
    }
}

/// Removes the volumes whose labels `dead` accepts.
pub(super) async fn sweep(
    engine: &DockerEngine,
    dead: LabelFilter<'_>,
) -> Result<usize, EngineError> {
    let failed = engine.failed(Call::Sweep);
    let filters = HashMap::from([("label", vec![LABEL])]);
    let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
    let listed = engine.docker().await?.list_volumes(Some(options)).await;
    let mut removed = Ok(0);
    for volume in listed.map_err(&failed)?.volumes.unwrap_or_default() {
        if !dead(&volume.labels.into_iter().collect()) {
            continue;
        }
        let options = RemoveVolumeOptionsBuilder::new().build();
        match engine.docker().await?.remove_volume(&volume.name, Some(options)).await {
            Ok(()) => removed = removed.map(|removed| removed + 1),
            Err(error) if error::status(&error) == Some(404) => {}
            // The others go all the same.
            Err(error) => removed = Err(failed(error)),
        }
    }
    removed
}
