//! Pulling images from registries.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use oci_spec::distribution::Reference;

use super::blobs::{Blobs, blob};
use super::blocking_job::run_job;
use super::error::{IoContext, StoreError};
use super::layers::{ImageParts, LayerSource};
use super::layout::digest_of;
use super::registry::Registry;
use super::room::in_mib;
use super::stage::Staged;
use super::stored::Stored;
use super::{Store, names};
use crate::engine::Progress;
use crate::engine::limits::ByteSize;

/// Layers that are fetched at the same time: Docker's default.
const PARALLEL_LAYERS: usize = 3;

/// Size of unpacked layers, relative to packed ones.
const UNPACKED: u64 = 3;

/// Disk space of a pull while it unpacks layers of this size, which are kept until it is done.
fn needed(packed: u64) -> String {
    match packed {
        0 => "an image takes about four times what its registry says".to_owned(),
        packed => {
            let all = ByteSize::bytes(packed.saturating_mul(1 + UNPACKED));
            format!("the image takes about {} while it is pulled", in_mib(all))
        }
    }
}

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
        let packed = AtomicU64::new(0);
        let pulled = self.pull_now(&reference, &packed, progress).await;
        pulled.map_err(|error| error.with_room(&self.directory, || needed(packed.into_inner())))
    }

    async fn pull_now(
        &self,
        reference: &Reference,
        packed: &AtomicU64,
        progress: Progress<'_>,
    ) -> Result<Stored, StoreError> {
        let staged = self.stage().await?;
        match self.fetch(reference, &staged, packed, progress).await {
            Ok(parts) => {
                let (store, names) = (self.clone(), vec![reference.whole()]);
                run_job(progress, move |job| {
                    let blobs = Blobs::Directory(staged.directory().to_owned());
                    store.build(Some(staged), &blobs, &parts, &names, job)
                })
                .await
            }
            Err(error) => {
                // Its files are removed before the caller gets the error.
                staged.discard().await;
                Err(error)
            }
        }
    }

    /// Fetches the parts of an image into a staging directory.
    async fn fetch(
        &self,
        reference: &Reference,
        staged: &Staged,
        packed: &AtomicU64,
        progress: Progress<'_>,
    ) -> Result<ImageParts, StoreError> {
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
            layers.push(LayerSource { path: blob(&digest), digest: Some(digest) });
        }
        packed.store(wanted.values().map(|layer| layer.size()).sum(), Ordering::Relaxed);
        // It is there already.
        wanted.remove(&digest);
        if self.read(&digest)?.is_some() {
            return Ok(ImageParts { digest, config, layers });
        }
        let fetched = stream::iter(wanted.into_iter().map(|(digest, layer)| {
            let registry = &registry;
            async move {
                registry.fetch(layer, self.limits.bytes, directory).await?;
                progress(&format!("fetched layer {}, {} bytes", digest.as_str(), layer.size()));
                Ok::<_, StoreError>(())
            }
        }));
        fetched.boxed().buffer_unordered(PARALLEL_LAYERS).try_collect::<()>().await?;
        Ok(ImageParts { digest, config, layers })
    }
}
