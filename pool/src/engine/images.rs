//! Images: found, built or pulled before the first sandbox is made from them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::engine::{Call, Engine, EngineError, Image, Progress, bounded};
use crate::lock::lock;

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// When it is not there.
    Missing,
    /// Never; a missing image is an error.
    Never,
    /// Once at every start of the server, whether it is there or not.
    Always,
}

/// Knows how to make some images instead of pulling them.
#[async_trait]
pub trait ImageBuilder: Send + Sync + 'static {
    /// Whether this builder is the source of the image.
    fn makes(&self, name: &str) -> bool;

    /// Makes the image on the engine.
    async fn build(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError>;
}

/// An image and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedImage {
    /// Its names; there may be none.
    pub names: Vec<String>,
    /// Its digest.
    pub digest: String,
    /// Size on disk, in bytes.
    pub size: u64,
}

/// What was removed because nothing needs it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Images, and what was left of some that never became any.
    pub images: usize,
    /// Bytes that are free again, as far as the engine tells.
    pub bytes: u64,
}

/// What an operator does with the images of an engine, besides having them built or pulled.
#[async_trait]
pub trait ImageStore: Send + Sync + 'static {
    /// The images that this software has made, and on an engine of its own all there are.
    async fn list(&self) -> Result<Vec<ListedImage>, EngineError>;

    /// Takes images from a file: what `docker save` writes, an OCI image layout, or the root file system
    /// of one, which needs a name. Returns their names.
    async fn import(
        &self,
        file: &Path,
        name: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Vec<String>, EngineError>;

    /// Removes an image's name, and with the last one the image.
    async fn remove(&self, name: &str) -> Result<(), EngineError>;

    /// Removes images that were replaced by later ones of the same name.
    async fn prune(&self) -> Result<Pruned, EngineError>;
}

/// Gets images onto an engine, as the policy says.
#[derive(Clone)]
pub struct ImageProvider {
    engine: Arc<dyn Engine>,
    builder: Arc<dyn ImageBuilder>,
    policy: PullPolicy,
    /// What was fetched since the start: `Always` means once, not before every sandbox.
    fetched: Arc<Mutex<BTreeSet<String>>>,
    /// Held while an image is fetched: several pools may want the same.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

impl ImageProvider {
    /// Puts the parts together.
    pub fn new(
        engine: Arc<dyn Engine>,
        builder: Arc<dyn ImageBuilder>,
        policy: PullPolicy,
    ) -> Self {
        Self { engine, builder, policy, fetched: Arc::default(), fetching: Arc::default() }
    }

    /// The image, fetched if it has to be. What happens meanwhile is logged.
    ///
    /// # Errors
    ///
    /// The engine's, and [`EngineError::NoSuchImage`] where the policy forbids to fetch.
    pub async fn ensure(&self, name: &str) -> Result<Image, EngineError> {
        if let Some(image) = self.find_if_enough(name).await? {
            return Ok(image);
        }
        if self.policy == PullPolicy::Never {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        }
        let _fetching = self.fetching.lock().await;
        // Somebody else may have fetched it meanwhile.
        if let Some(image) = self.find_if_enough(name).await? {
            return Ok(image);
        }
        self.fetch(name, &|line| tracing::info!(image = name, "{line}")).await
    }

    /// Builds or pulls the image, whether it is there or not.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn fetch(&self, name: &str, progress: Progress<'_>) -> Result<Image, EngineError> {
        if self.builder.makes(name) {
            bounded(Call::FetchImage, self.builder.build(name, progress)).await?;
        } else {
            bounded(Call::FetchImage, self.engine.pull_image(name, progress)).await?;
        }
        let image = self.find(name).await?;
        let image = image.ok_or_else(|| EngineError::NoSuchImage(name.to_owned()))?;
        lock(&self.fetched).insert(name.to_owned());
        Ok(image)
    }

    /// The image that is there, unless the policy asks for more.
    async fn find_if_enough(&self, name: &str) -> Result<Option<Image>, EngineError> {
        if self.policy == PullPolicy::Always && !self.was_fetched(name) {
            return Ok(None);
        }
        self.find(name).await
    }

    fn was_fetched(&self, name: &str) -> bool {
        lock(&self.fetched).contains(name)
    }

    /// Whether the image is built here and not pulled.
    pub fn is_built(&self, name: &str) -> bool {
        self.builder.makes(name)
    }

    /// The image, if the engine has it.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn find(&self, name: &str) -> Result<Option<Image>, EngineError> {
        bounded(Call::FindImage, self.engine.find_image(name)).await
    }
}
