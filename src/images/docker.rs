//! The language images on a Docker engine, built by it.

use std::collections::HashMap;

use async_trait::async_trait;
use isolator_pool::engine::docker::{DockerEngine, ImageBuild};
use isolator_pool::engine::{EngineError, Progress};

use super::{BuildEngine, Recipe};

#[async_trait]
impl BuildEngine for DockerEngine {
    async fn build(&self, recipe: Recipe<'_>, progress: Progress<'_>) -> Result<(), EngineError> {
        let Recipe { name, base, context, .. } = recipe;
        let arguments = HashMap::from([("BASE".to_owned(), base.to_owned())]);
        self.build_image(ImageBuild { name, context, arguments }, progress).await
    }
}
