//! The operator's commands on images, done by the embedded engine's store.

use std::path::Path;

use async_trait::async_trait;

use super::{EmbeddedEngine, store_refused};
use crate::engine::images::{ImageStore, ListedImage, Pruned};
use crate::engine::{Call, EngineError, Progress};

#[async_trait]
impl ImageStore for EmbeddedEngine {
    async fn list(&self) -> Result<Vec<ListedImage>, EngineError> {
        let listed = self.store.list().map_err(|error| store_refused(Call::FindImage, error))?;
        let listed = listed.into_iter().map(|listed| ListedImage {
            names: listed.names,
            digest: listed.image.digest,
            size: listed.image.size,
        });
        Ok(listed.collect())
    }

    async fn import(
        &self,
        file: &Path,
        name: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Vec<String>, EngineError> {
        let imported = self.store.import(file, name, progress).await;
        let imported = imported.map_err(|error| store_refused(Call::FetchImage, error))?;
        let listed = self.list().await?;
        let is_new = |image: &&ListedImage| imported.iter().any(|new| new.digest == image.digest);
        Ok(listed.iter().filter(is_new).flat_map(|image| image.names.clone()).collect())
    }

    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let removed = self.store.remove(name).await;
        removed.map_err(|error| store_refused(Call::RemoveImage, error))
    }

    async fn prune(&self) -> Result<Pruned, EngineError> {
        self.store.prune().await.map_err(|error| store_refused(Call::RemoveImage, error))
    }

    async fn settle(&self) {
        self.store.settle().await;
    }
}
