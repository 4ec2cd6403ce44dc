//! The language images in the store of the embedded engine, built without any other engine.

use std::sync::Arc;

use async_trait::async_trait;
use include_dir::Dir;
use isolator_pool::embedded::{EmbeddedEngine, ImageBuild};
use isolator_pool::engine::{EngineError, Progress};
use isolator_pool::images::ImageBuilder;
use isolator_pool::store::{Description, Stored};

use super::{BASE, PUBLIC_BASE, context, failed, folder, make_base, refused};

/// Builds the language images in the store of an engine.
pub struct StoreImages {
    engine: Arc<EmbeddedEngine>,
    /// Two builds at once would both make the base.
    building: tokio::sync::Mutex<()>,
}

impl StoreImages {
    /// A builder that uses the engine.
    pub fn new(engine: Arc<EmbeddedEngine>) -> Self {
        Self { engine, building: tokio::sync::Mutex::new(()) }
    }

    /// The image to start from: the one made before, a public one, or one made now.
    async fn base(&self, progress: Progress<'_>) -> Result<Stored, EngineError> {
        let store = self.engine.store();
        for name in [BASE, PUBLIC_BASE] {
            if let Some(found) = store.find(name).map_err(words)? {
                return Ok(found);
            }
        }
        progress(&format!("pulling {PUBLIC_BASE}"));
        match store.pull(PUBLIC_BASE, progress).await {
            Ok(pulled) => return Ok(pulled),
            Err(error) => {
                progress(&format!("{error}; making the base image from Debian's packages instead"));
            }
        }
        let folder = tempfile::tempdir().map_err(failed)?;
        let tar = make_base(folder.path(), progress).await?;
        let imported = store.import(&tar, Some(BASE), progress).await.map_err(words)?;
        imported.into_iter().next().ok_or_else(|| EngineError::NoSuchImage(BASE.to_owned()))
    }
}

#[async_trait]
impl ImageBuilder for StoreImages {
    fn makes(&self, name: &str) -> bool {
        folder(name).is_some()
    }

    async fn build(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        let Some(folder) = folder(name) else {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        };
        let _building = self.building.lock().await;
        let base = self.base(progress).await?;
        progress(&format!("building {name} from {}", base.digest));
        let context = context(folder).map_err(failed)?;
        let description = Description { env: environment(folder), ..Description::default() };
        let build = ImageBuild { name, base: &base, context, description };
        self.engine.build_image(build, progress).await
    }
}

fn words(error: impl std::fmt::Display) -> EngineError {
    refused(error.to_string())
}

/// The variables that an image's `Dockerfile` sets: all that is said there besides running the script.
fn environment(folder: &Dir<'_>) -> Vec<String> {
    let file = folder.get_file(folder.path().join("Dockerfile"));
    let text = file.and_then(|file| file.contents_utf8()).unwrap_or_default();
    let lines = text.replace("\\\n", " ");
    let settings = lines.lines().filter_map(|line| line.strip_prefix("ENV "));
    settings.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_s_variables_are_those_of_its_dockerfile() {
        let python = environment(folder("isolator/python").unwrap());
        assert!(python.contains(&"LANG=C.UTF-8".to_owned()), "{python:?}");
        assert!(python.contains(&"MPLBACKEND=Agg".to_owned()), "{python:?}");
        for name in ["isolator/python", "isolator/javascript", "isolator/go"] {
            let environment = environment(folder(name).unwrap());
            assert!(environment.iter().all(|variable| variable.contains('=')), "{environment:?}");
            assert!(environment.iter().any(|variable| variable.starts_with("PATH=")), "{name}");
        }
    }
}
