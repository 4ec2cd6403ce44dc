//! What the sandboxes of a pool are made from.

use std::sync::{Arc, Mutex};

use super::Shared;
use crate::engine::preload::Preload;
use crate::engine::{Call, SandboxSpec, bounded};
use crate::lock::lock;
use crate::sandbox::SandboxError;

/// The description of a pool's sandboxes, and the same with its image found on the engine.
pub(super) struct Template {
    /// The description; the digest of its image is empty.
    spec: SandboxSpec,
    /// The description with its image resolved. Forgotten when the engine may have lost something.
    resolved: Mutex<Option<Arc<SandboxSpec>>>,
    resolving: tokio::sync::Mutex<()>,
}

impl Template {
    pub(super) fn new(spec: SandboxSpec) -> Self {
        Self { spec, resolved: Mutex::default(), resolving: tokio::sync::Mutex::default() }
    }

    /// The image's name.
    pub(super) fn image(&self) -> &str {
        &self.spec.image.name
    }

    /// The image's digest, once it is known.
    pub(super) fn digest(&self) -> Option<String> {
        lock(&self.resolved).as_ref().map(|spec| spec.image.digest.clone())
    }

    /// The interpreter that waits in each sandbox, if one does.
    pub(super) fn preload(&self) -> Option<&Preload> {
        self.spec.preload.as_ref()
    }

    /// Whether the image was found.
    pub(super) fn is_resolved(&self) -> bool {
        lock(&self.resolved).is_some()
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
        let log = |line: &str| tracing::info!(image = self.image(), "{line}");
        // Fetching may take minutes, and nobody waits for it when the server stops.
        let image = tokio::select! {
            image = shared.images.ensure(self.image(), &log) => image?,
            () = shared.stop.cancelled() => return Err(SandboxError::Closed),
        };
        bounded(Call::Prepare, shared.engine.prepare(&image)).await?;
        let spec = Arc::new(SandboxSpec { image, ..self.spec.clone() });
        *lock(&self.resolved) = Some(Arc::clone(&spec));
        Ok(spec)
    }
}
