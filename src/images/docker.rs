//! The language images on a Docker engine, built by it.

use std::collections::HashMap;

use async_trait::async_trait;
use include_dir::Dir;
use isolator_pool::docker::{DockerEngine, ImageBuild};
use isolator_pool::engine::{EngineError, Progress};

use super::{BuildEngine, context, failed};

#[async_trait]
impl BuildEngine for DockerEngine {
    async fn build_from(
        &self,
        base: &str,
        name: &str,
        folder: &'static Dir<'static>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let context = context(folder).map_err(failed)?;
        let arguments = HashMap::from([("BASE".to_owned(), base.to_owned())]);
        self.build_image(ImageBuild { name, context, arguments }, progress).await
    }
}
