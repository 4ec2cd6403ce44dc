//! The volume that brings the runner and its files into every container of this instance.
//!
//! A volume works with any image and with an engine on another machine, where a bind mount of a file of this machine would not. It is
//! filled through a container that is never started.

use std::collections::HashMap;

use bollard::models::{HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder};

use futures_util::stream;
use isolator_runner::paths;

use super::container::{self, Access};
use super::helper::{Helper, NEVER_STARTED};
use super::{DockerEngine, error};
use crate::engine::instance::{Instance, LABEL};
use crate::engine::{Call, EngineError, Image, LabelFilter};

/// The volume of one instance.
pub(super) struct RunnerVolume {
    name: String,
    runner: &'static [u8],
    /// Creation time of the volume that this process filled. Locked while the volume is being filled.
    filled: tokio::sync::Mutex<Option<String>>,
}

impl RunnerVolume {
    pub(super) fn new(instance: &Instance, runner: &'static [u8]) -> Self {
        Self {
            name: format!("isolator-{}-runner", instance.short_id()),
            runner,
            filled: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Creates and fills the volume, unless this process has done so and the volume still exists.
    pub(super) async fn fill(
        &self,
        engine: &DockerEngine,
        image: &Image,
    ) -> Result<(), EngineError> {
        let mut filled = self.filled.lock().await;
        if filled.is_some() && *filled == made(engine, &self.name).await? {
            return Ok(());
        }
        *filled = None;
        let failed = engine.failed(Call::Prepare);
        let request = VolumeCreateRequest {
            name: Some(self.name.clone()),
            labels: Some(engine.all_labels()),
            ..VolumeCreateRequest::default()
        };
        engine.docker().await?.create_volume(request).await.map_err(&failed)?;
        let helper = Helper::new(engine);
        let uploaded = self.upload(engine, &helper, image).await;
        let removed = helper.remove().await;
        uploaded?;
        removed?;
        *filled = made(engine, &self.name).await?;
        Ok(())
    }

    async fn upload(
        &self,
        engine: &DockerEngine,
        helper: &Helper<'_>,
        image: &Image,
    ) -> Result<(), EngineError> {
        let volume = (self.name.as_str(), paths::DIRECTORY);
        let mount = container::mount(volume, &engine.all_labels(), Access::ReadWrite);
        let host = HostConfig { mounts: Some(vec![mount]), ..HostConfig::default() };
        helper.create(&image.digest, NEVER_STARTED, host, Call::Prepare).await?;
        let tar = stream::iter([Ok(self.tar().into())]);
        helper.upload(paths::DIRECTORY, tar, Call::Prepare).await
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

/// A volume's creation time, if it exists. If the volume was removed, the engine creates an empty one when a container mounts
/// it; the time shows that.
pub(super) async fn made(engine: &DockerEngine, name: &str) -> Result<Option<String>, EngineError> {
    match engine.docker().await?.inspect_volume(name).await {
        Ok(volume) => Ok(Some(format!("{:?}", volume.created_at))),
        Err(error) if error::status(&error) == Some(404) => Ok(None),
        Err(error) => Err(engine.failed(Call::Prepare)(error)),
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
