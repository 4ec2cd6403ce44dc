//! Pulling images from registries.

use std::collections::BTreeMap;
use std::fs;

use futures_util::{StreamExt, TryStreamExt, stream};
use oci_spec::distribution::Reference;

use super::blobs::{Blobs, blob};
use super::blocking_job::run_job;
use super::error::{IoContext, StoreError};
use super::layers::{Parts, Source};
use super::layout::digest_of;
use super::registry::Registry;
use super::stage::Staged;
use super::stored::Stored;
use super::{Store, names};
use crate::engine::Progress;

/// Layers that are fetched at the same time: Docker's default.
const PARALLEL_LAYERS: usize = 3;

impl Store {
    /// Pulls an image from its registry, with the credentials of Docker's command line. A registry on this
    /// machine is used without TLS.
    ///
    /// Dropping the future cancels the pull and leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`StoreError::Registry`], and what [`import`](Self::import) returns for an image that can't be used.
    pub async fn pull(&self, name: &str, progress: Progress<'_>) -> Result<Stored, StoreError> {
        let reference = names::reference(name)?;
        let staged = self.stage().await?;
        match self.fetch(&reference, &staged, progress).await {
            Ok(parts) => {
                let (store, names) = (self.clone(), vec![reference.whole()]);
                run_job(progress, move |job| {
                    let blobs = Blobs::Directory(staged.directory().to_owned());
                    store.build(Some(staged), &blobs, &parts, &names, job)
                })
                .await
            }
            Err(error) => {
                // What it left is removed before the caller gets the error.
                staged.discard().await;
                Err(error)
            }
        }
    }

    /// Fetches what an image consists of into a staging directory.
    async fn fetch(
        &self,
        reference: &Reference,
        staged: &Staged,
        progress: Progress<'_>,
    ) -> Result<Parts, StoreError> {
        let registry = Registry::new(reference, &self.limits)?;
        progress(&format!("asking {} for {reference}", reference.registry()));
        let manifest = registry.manifest().await?;
        let directory = staged.directory();
        let made = fs::create_dir_all(directory.join("blobs/sha256"));
        made.at("make a directory for layers in", directory)?;

        let digest = digest_of(manifest.config())?;
        registry.fetch(manifest.config(), self.limits.description, directory).await?;
        let blobs = Blobs::Directory(directory.to_owned());
        let config = blobs.read_blob(&digest, self.limits.description)?;
        let mut layers = Vec::new();
        let mut wanted = BTreeMap::new();
        for layer in manifest.layers() {
            let digest = digest_of(layer)?;
            wanted.insert(digest.clone(), layer);
            layers.push(Source { path: blob(&digest), digest: Some(digest) });
        }
        // It is there already.
        wanted.remove(&digest);
        if self.read(&digest)?.is_some() {
            return Ok(Parts { digest, config, layers });
        }
        let fetched = stream::iter(wanted.into_iter().map(|(digest, layer)| {
            let registry = &registry;
            async move {
                registry.fetch(layer, self.limits.bytes, directory).await?;
                progress(&format!("fetched layer {}, {} bytes", digest.as_str(), layer.size()));
                Ok(())
            }
        }));
        fetched.boxed().buffer_unordered(PARALLEL_LAYERS).try_collect::<()>().await?;
        Ok(Parts { digest, config, layers })
    }
}
