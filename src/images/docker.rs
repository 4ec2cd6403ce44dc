//! The language images on a Docker engine, built by it.

use std::collections::HashMap;

use async_trait::async_trait;
use isolator_pool::engine::docker::{DockerEngine, ImageBuild};
use isolator_pool::engine::images::BuiltFrom;
use isolator_pool::engine::{Call, Engine as _, EngineError, Progress, bounded};

use super::{BuildEngine, Recipe};

#[async_trait]
impl BuildEngine for DockerEngine {
    async fn can_build(&self) -> Result<(), EngineError> {
        bounded(Call::Check, self.check()).await.map(drop)
    }

    async fn built_from(&self, name: &str) -> Result<Option<BuiltFrom>, EngineError> {
        self.built_from(name).await
    }

    async fn build(&self, recipe: Recipe<'_>, progress: Progress<'_>) -> Result<(), EngineError> {
        let Recipe { name, base, context, built_from, former, .. } = recipe;
        let arguments = HashMap::from([("BASE".to_owned(), base.to_owned())]);
        let image = |context| ImageBuild {
            name,
            context,
            arguments: arguments.clone(),
            built_from: built_from.clone(),
            former,
        };
        match self.build_image(image(context.clone()), progress).await {
            Err(EngineError::Refused { cause, .. }) if lost_a_file(&cause.to_string()) => {
                progress("the engine lost a file while it copied; building again");
                self.build_image(image(context), progress).await
            }
            built => built,
        }
    }
}

/// Whether a build failed because the engine did not find a file that it had just listed. Docker's builder without BuildKit
/// sometimes does so on a busy machine; the steps before the copy are still in its cache.
fn lost_a_file(message: &str) -> bool {
    message.starts_with("COPY failed: lstat ") && message.ends_with(": no such file or directory")
}
