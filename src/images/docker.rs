//! The language images on a Docker engine, built by it.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use isolator_pool::docker::{DockerEngine, ImageBuild};
use isolator_pool::engine::{Engine, EngineError, Progress};
use isolator_pool::images::ImageBuilder;
use tokio_util::io::ReaderStream;

use super::{BASE, PUBLIC_BASE, context, failed, folder, make_base};

/// Builds the language images on a Docker engine.
pub struct DockerImages {
    engine: Arc<DockerEngine>,
    /// Two builds at once would both make the base.
    building: tokio::sync::Mutex<()>,
}

impl DockerImages {
    /// A builder that uses the engine.
    pub fn new(engine: Arc<DockerEngine>) -> Self {
        Self { engine, building: tokio::sync::Mutex::new(()) }
    }

    /// The image to start from: the one made before, a public one, or one made now.
    async fn base(&self, progress: Progress<'_>) -> Result<&'static str, EngineError> {
        for name in [BASE, PUBLIC_BASE] {
            if self.engine.find_image(name).await?.is_some() {
                return Ok(name);
            }
        }
        progress(&format!("pulling {PUBLIC_BASE}"));
        match self.engine.pull_image(PUBLIC_BASE, progress).await {
            Ok(()) => return Ok(PUBLIC_BASE),
            Err(error @ EngineError::Unreachable { .. }) => return Err(error),
            Err(error) => {
                progress(&format!("{error}; making the base image from Debian's packages instead"));
            }
        }
        let folder = tempfile::tempdir().map_err(failed)?;
        let tar = make_base(folder.path(), progress).await?;
        let file = tokio::fs::File::open(&tar).await.map_err(failed)?;
        self.engine.import_image(BASE, ReaderStream::new(file), progress).await?;
        Ok(BASE)
    }
}

#[async_trait]
impl ImageBuilder for DockerImages {
    fn makes(&self, name: &str) -> bool {
        folder(name).is_some()
    }

    async fn build(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        let Some(folder) = folder(name) else {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        };
        let _building = self.building.lock().await;
        let base = self.base(progress).await?;
        progress(&format!("building {name} from {base}"));
        let context = context(folder).map_err(failed)?;
        let arguments = HashMap::from([("BASE".to_owned(), base.to_owned())]);
        self.engine.build_image(ImageBuild { name, context, arguments }, progress).await
    }
}
