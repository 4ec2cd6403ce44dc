//! The language images in the store of the embedded engine, built without another engine.

use async_trait::async_trait;
use include_dir::Dir;
use isolator_pool::engine::embedded::{EmbeddedEngine, ImageBuild};
use isolator_pool::engine::images::BuiltFrom;
use isolator_pool::engine::store::Description;
use isolator_pool::engine::{EngineError, Progress};

use super::error::refused;
use super::{BuildEngine, Recipe};

#[async_trait]
impl BuildEngine for EmbeddedEngine {
    async fn can_build(&self) -> Result<(), EngineError> {
        self.can_build_images()
    }

    async fn built_from(&self, name: &str) -> Result<Option<BuiltFrom>, EngineError> {
        let found = self.store().find(name).map_err(refused)?;
        Ok(found.and_then(|stored| stored.description.built_from))
    }

    async fn build(&self, recipe: Recipe<'_>, progress: Progress<'_>) -> Result<(), EngineError> {
        let Recipe { name, base, folder, context, built_from, .. } = recipe;
        let found = self.store().find(base).map_err(refused)?;
        let base = &found.ok_or_else(|| EngineError::NoSuchImage(base.to_owned()))?;
        let built_from = Some(built_from);
        let description =
            Description { env: environment(folder), built_from, ..Description::default() };
        self.build_image(ImageBuild { name, base, context, description }, progress).await
    }
}

/// The variables that an image's `Dockerfile` sets. It does nothing else besides running the script.
fn environment(folder: &Dir<'_>) -> Vec<String> {
    let file = folder.get_file(folder.path().join("Dockerfile"));
    let text = file.and_then(|file| file.contents_utf8()).unwrap_or_default();
    let lines = text.replace("\\\n", " ");
    let settings = lines.lines().filter_map(|line| line.strip_prefix("ENV "));
    settings.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::folder;
    use super::*;

    #[test]
    fn an_image_s_variables_are_those_of_its_dockerfile() {
        let python = environment(folder("isolator/python").unwrap());
        assert!(python.contains(&"LANG=C.UTF-8".to_owned()), "{python:?}");
        assert!(python.contains(&"MPLBACKEND=agg".to_owned()), "{python:?}");
        for name in ["isolator/python", "isolator/javascript", "isolator/go"] {
            let environment = environment(folder(name).unwrap());
            assert!(environment.iter().all(|variable| variable.contains('=')), "{environment:?}");
            assert!(environment.iter().any(|variable| variable.starts_with("PATH=")), "{name}");
        }
    }
}
