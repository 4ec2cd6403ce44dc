//! Helpers: containers through which a volume is filled or cleared. Most of them are never started.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use bytes::Bytes;
use futures_util::Stream;

use super::DockerEngine;
use crate::engine::instance::Instance;
use crate::engine::{Call, Engine, EngineError, SandboxName};
use crate::lock::lock;

/// The command of a helper that is never started.
pub(super) const NEVER_STARTED: &[&str] = &["never-started"];

/// The helpers of one instance that are at work.
pub(super) struct Helpers {
    prefix: String,
    names: Mutex<HashSet<SandboxName>>,
}

impl Helpers {
    pub(super) fn new(instance: &Instance) -> Self {
        Self { prefix: format!("isolator-{}-helper", instance.short_id()), names: Mutex::default() }
    }

    /// Whether a container is a helper at work, which has no lease.
    pub(super) fn contains(&self, name: &SandboxName) -> bool {
        lock(&self.names).contains(name)
    }
}

/// A helper at work. If it is dropped before it was removed, reconciliation finds it: it has our labels and no lease.
pub(super) struct Helper<'a> {
    pub(super) name: SandboxName,
    engine: &'a DockerEngine,
}

impl<'a> Helper<'a> {
    pub(super) fn new(engine: &'a DockerEngine) -> Self {
        let number = uuid::Uuid::new_v4().simple();
        let name = SandboxName::new(format!("{}-{number}", engine.helpers.prefix));
        lock(&engine.helpers.names).insert(name.clone());
        Self { name, engine }
    }

    /// Creates the container.
    pub(super) async fn create(
        &self,
        image: &str,
        command: &[&str],
        host: HostConfig,
        call: Call,
    ) -> Result<(), EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(self.name.as_str()).build();
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(command.iter().map(|&word| word.to_owned()).collect()),
            cmd: Some(Vec::new()),
            network_disabled: Some(true),
            user: Some("0:0".to_owned()),
            labels: Some(self.engine.all_labels()),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..host }),
            ..ContainerCreateBody::default()
        };
        let created = self.engine.docker().await?.create_container(Some(options), body).await;
        created.map(drop).map_err(self.engine.failed(call))
    }

    /// Unpacks an archive at a path of the container.
    pub(super) async fn upload(
        &self,
        path: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        call: Call,
    ) -> Result<(), EngineError> {
        let options = UploadToContainerOptionsBuilder::new().path(path).build();
        let archive = bollard::body_try_stream(archive);
        let docker = self.engine.docker().await?;
        let uploaded = docker.upload_to_container(self.name.as_str(), Some(options), archive).await;
        uploaded.map_err(self.engine.failed(call))
    }

    pub(super) async fn remove(self) -> Result<(), EngineError> {
        self.engine.remove(&self.name).await
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        lock(&self.engine.helpers.names).remove(&self.name);
    }
}
