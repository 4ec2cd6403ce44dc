//! Images on an engine: found, built or pulled before the first sandbox is made from them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use crate::engine::fetches::FetchStatus;
use crate::engine::fetches::Fetches;
use crate::engine::{Call, Engine, EngineError, Image, Progress, bounded};
use crate::lock::lock;

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// If it is missing.
    Missing,
    /// Never; a missing image is an error.
    Never,
    /// Once at every start of the server, even if it is there.
    Always,
}

/// The origin of a built image. It shows whether a build would only make the same image again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltFrom {
    /// The digest of the description of the build.
    pub recipe: String,
    /// The digest of the image that it started from. A copy of another engine's image has none, because its base is not on this
    /// one.
    pub base: Option<String>,
}

/// Whether a build uses what earlier builds have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// The image itself, if nothing has changed, its base, and the engine's cache of steps.
    Used,
    /// Nothing: everything is made anew.
    Ignored,
}

/// Prefix of the lines of progress that announce a step, among the lines of the tools that do it.
pub const STEP: &str = "step ";

/// Builds some images that would otherwise be pulled.
#[async_trait]
pub trait ImageBuilder: Send + Sync + 'static {
    /// Whether this builder makes the image.
    fn makes(&self, name: &str) -> bool;

    /// Builds the image on the engine.
    async fn build(
        &self,
        name: &str,
        former: Former,
        progress: Progress<'_>,
    ) -> Result<(), EngineError>;

    /// Whether the image is on the engine and a build would make the same one.
    async fn is_current(&self, _: &str) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Whether images can be built here.
    ///
    /// # Errors
    /// The missing part, and how to fix it.
    async fn can_build(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Waits until a canceled build is cleaned up, apart from what the engine's store waits for.
    async fn settle(&self) {}
}

/// An image that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The image.
    pub image: Image,
    /// Whether it was there already, and nothing was done.
    pub is_unchanged: bool,
}

/// An image and its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedImage {
    /// Its names; there may be none.
    pub names: Vec<String>,
    /// Its digest.
    pub digest: String,
    /// Size on disk, in bytes.
    pub size: u64,
}

/// The result of a removal of unneeded images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Images, and leftovers of unfinished ones.
    pub images: usize,
    /// Bytes that were freed, as far as the engine tells.
    pub bytes: u64,
}

/// The operator's commands on the images of an engine, besides building and pulling them.
#[async_trait]
pub trait ImageStore: Send + Sync + 'static {
    /// The images that Isolator has made; on the embedded engine, all images.
    async fn list(&self) -> Result<Vec<ListedImage>, EngineError>;

    /// Imports images from a file: what `docker save` writes, an OCI image layout, or a root file system,
    /// which needs a name. Returns their names.
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

    /// Waits until everything that was canceled here is cleaned up.
    async fn settle(&self) {}
}

/// Gets images onto an engine, as the policy says.
#[derive(Clone)]
pub struct ImageProvider {
    engine: Arc<dyn Engine>,
    builder: Arc<dyn ImageBuilder>,
    policy: PullPolicy,
    /// Images that were fetched since the start: `Always` means once, not before every sandbox.
    fetched: Arc<Mutex<BTreeSet<String>>>,
    fetches: Fetches,
}

impl ImageProvider {
    /// A provider of images for an engine.
    pub fn new(
        engine: Arc<dyn Engine>,
        builder: Arc<dyn ImageBuilder>,
        policy: PullPolicy,
    ) -> Self {
        Self { engine, builder, policy, fetched: Arc::default(), fetches: Fetches::default() }
    }

    /// Finds the image, and fetches it first if the policy says so. Meanwhile [`Self::fetching`] tells how far it is.
    ///
    /// # Errors
    ///
    /// The engine's, and [`EngineError::NoSuchImage`] if the policy forbids fetching.
    pub async fn ensure(&self, name: &str, progress: Progress<'_>) -> Result<Image, EngineError> {
        if let Some(image) = self.find_if_enough(name).await? {
            return Ok(image);
        }
        if self.policy == PullPolicy::Never {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        }
        let fetching = self.fetches.begin(name, self.is_built(name));
        fetching.turn().await;
        // Another pool may have fetched it meanwhile.
        if let Some(image) = self.find_if_enough(name).await? {
            return Ok(image);
        }
        let progress = |line: &str| {
            fetching.step(line);
            progress(line);
        };
        self.fetch(name, Former::Used, &progress).await.map(|fetched| fetched.image)
    }

    /// Moves an image that waits to be fetched before those that no request waits for.
    pub fn hurry(&self, name: &str) {
        self.fetches.hurry(name);
    }

    /// How far an image is that is being fetched before a sandbox can be made from it.
    pub fn fetching(&self, name: &str) -> Option<FetchStatus> {
        self.fetches.status(name)
    }

    /// Builds or pulls the image, whether it is there or not. An image that a build would only make once more is taken as it is,
    /// unless what is there is ignored.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn fetch(
        &self,
        name: &str,
        former: Former,
        progress: Progress<'_>,
    ) -> Result<Fetched, EngineError> {
        let is_built = self.builder.makes(name);
        let is_unchanged = is_built
            && former == Former::Used
            && bounded(Call::FindImage, self.builder.is_current(name)).await?;
        if is_unchanged {
            tracing::debug!(name, "the image is what would be built");
        } else if is_built {
            bounded(Call::FetchImage, self.builder.build(name, former, progress)).await?;
        } else {
            progress(&format!("{STEP}1 of 1: pulling {name}"));
            bounded(Call::FetchImage, self.engine.pull_image(name, progress)).await?;
        }
        let image = self.find(name).await?;
        let image = image.ok_or_else(|| EngineError::NoSuchImage(name.to_owned()))?;
        lock(&self.fetched).insert(name.to_owned());
        Ok(Fetched { image, is_unchanged })
    }

    /// The image, if it is there and the policy does not ask for a newer one.
    pub(crate) async fn find_if_enough(&self, name: &str) -> Result<Option<Image>, EngineError> {
        if self.policy == PullPolicy::Always && !self.was_fetched(name) {
            return Ok(None);
        }
        self.find(name).await
    }

    fn was_fetched(&self, name: &str) -> bool {
        lock(&self.fetched).contains(name)
    }

    /// Whether a missing image can be built here, if it is one that is built.
    ///
    /// # Errors
    /// The missing part, and how to fix it.
    pub async fn can_fetch(&self, name: &str) -> Result<(), EngineError> {
        if self.is_built(name) { self.builder.can_build().await } else { Ok(()) }
    }

    /// Waits until a canceled build is cleaned up, apart from what the engine's store waits for.
    pub async fn settle(&self) {
        self.builder.settle().await;
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
