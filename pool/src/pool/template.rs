//! The template of a pool's sandboxes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::Shared;
use crate::engine::images::STEP;
use crate::engine::preload::Preload;
use crate::engine::{Call, EngineError, Image, SandboxSpec, bounded};
use crate::lock::lock;
use crate::sandbox::SandboxError;

/// The description of a pool's sandboxes, and the same with its image found on the engine.
pub(super) struct Template {
    /// The description; the digest of its image is empty.
    spec: SandboxSpec,
    /// The description with its image resolved. Forgotten when the engine may have lost something.
    resolved: Mutex<Option<Arc<SandboxSpec>>>,
    resolving: tokio::sync::Mutex<()>,
    digests: Mutex<Digests>,
    /// Whether the image was not there at the last try, and could not be fetched.
    has_failed: AtomicBool,
}

/// The digests of the images that sandboxes were made from.
#[derive(Default)]
struct Digests {
    /// Of the last one that was found, which need not be there anymore.
    last: Option<String>,
    /// Of the one that it has replaced.
    former: Option<String>,
}

impl Template {
    pub(super) fn new(spec: SandboxSpec) -> Self {
        let (resolved, resolving, digests, has_failed) = Default::default();
        Self { spec, resolved, resolving, digests, has_failed }
    }

    /// The description, without the digest of the image.
    pub(super) fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// The image's name.
    pub(super) fn image(&self) -> &str {
        &self.spec.image.name
    }

    /// The image's digest, once it is known.
    pub(super) fn digest(&self) -> Option<String> {
        lock(&self.resolved).as_ref().map(|spec| spec.image.digest.clone())
    }

    /// The digest of the image that had this name before, if another has it now.
    pub(super) fn former_digest(&self) -> Option<String> {
        lock(&self.digests).former.clone()
    }

    /// Whether a sandbox's image was replaced by another of the same name.
    pub(super) fn is_outdated(&self, sandbox: &SandboxSpec) -> bool {
        lock(&self.digests).last.as_ref().is_some_and(|last| *last != sandbox.image.digest)
    }

    /// The interpreter that waits in each sandbox, if one does.
    pub(super) fn preload(&self) -> Option<&Preload> {
        self.spec.preload.as_ref()
    }

    /// Whether the image was found.
    pub(super) fn is_resolved(&self) -> bool {
        lock(&self.resolved).is_some()
    }

    /// Whether the image was not there at the last try, and could not be fetched.
    pub(super) fn is_without_image(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Looks for everything again before the next sandbox.
    pub(super) fn forget(&self) {
        *lock(&self.resolved) = None;
    }

    /// The description of a sandbox, with its image and all else that the engine needs made ready.
    pub(super) async fn resolve(&self, shared: &Shared) -> Result<Arc<SandboxSpec>, SandboxError> {
        // One at a time: the first fetches the image, the others find it.
        let _resolving = self.resolving.lock().await;
        let resolved = lock(&self.resolved).clone();
        if let Some(spec) = resolved {
            return Ok(spec);
        }
        // A build prints hundreds of lines, and each further try the same ones.
        let is_first = !self.is_without_image();
        let log = |line: &str| match is_first && line.starts_with(STEP) {
            true => tracing::info!(image = self.image(), "{line}"),
            false => tracing::debug!(image = self.image(), "{line}"),
        };
        // Fetching may take minutes, and a server that stops does not wait for it.
        let found = tokio::select! {
            biased;
            () = shared.stop.cancelled() => None,
            found = shared.images.ensure(self.image(), &log) => Some(found),
        };
        let Some(found) = found else {
            shared.images.settle().await;
            return Err(SandboxError::Closed);
        };
        self.has_failed.store(found.is_err(), Ordering::Relaxed);
        Ok(self.accept(found?, shared).await?)
    }

    /// Looks whether another image has the name now, and makes sandboxes from that from then on. Returns whether there is one.
    ///
    /// If the name is gone, sandboxes are made from the image that had it, as long as the engine can.
    pub(super) async fn renew(&self, shared: &Shared) -> Result<bool, EngineError> {
        if !self.is_resolved() {
            // The next sandbox looks, which comes late if the image could not be fetched.
            let is_awaited = self.is_without_image();
            let is_there =
                is_awaited && shared.images.find_if_enough(self.image()).await?.is_some();
            self.has_failed.store(is_awaited && !is_there, Ordering::Relaxed);
            return Ok(is_there);
        }
        let Some(image) = shared.images.find(self.image()).await? else { return Ok(false) };
        let _resolving = self.resolving.lock().await;
        if self.digest().is_none_or(|digest| digest == image.digest) {
            return Ok(false);
        }
        self.accept(image, shared).await.map(|_| true)
    }

    /// Prepares the engine for an image, and takes it.
    async fn accept(&self, image: Image, shared: &Shared) -> Result<Arc<SandboxSpec>, EngineError> {
        let digest = image.digest.clone();
        let spec = Arc::new(SandboxSpec { image, ..self.spec.clone() });
        bounded(Call::Prepare, shared.engine.prepare(&spec)).await?;
        *lock(&self.resolved) = Some(Arc::clone(&spec));
        let mut digests = lock(&self.digests);
        if let Some(former) = digests.last.replace(digest.clone()).filter(|last| *last != digest) {
            let image = self.image();
            tracing::info!(%image, %digest, %former, "the image was replaced; sandboxes are made from the new one");
            digests.former = Some(former);
        }
        Ok(spec)
    }
}
