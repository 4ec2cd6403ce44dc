//! The sources and the base of images, on an engine that only records them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use isolator_pool::engine::images::{ListedImage, Pruned};
use isolator_pool::engine::limits::{LimitKind, Resources};
use isolator_pool::engine::{
    Channel, LabelFilter, ListedSandbox, SandboxName, SandboxSpec, SandboxState, Unsupported,
    Warning,
};
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;

use super::*;

/// The digests of images by their names, and their sources.
#[derive(Default)]
struct Recording(Mutex<BTreeMap<String, (String, Option<BuiltFrom>)>>);

impl Recording {
    fn put(&self, name: &str, digest: &str) {
        lock(&self.0).insert(name.to_owned(), (digest.to_owned(), None));
    }
}

#[async_trait]
impl BuildEngine for Recording {
    async fn can_build(&self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn build(&self, recipe: Recipe<'_>, _: Progress<'_>) -> Result<(), EngineError> {
        let built = ("built".to_owned(), Some(recipe.built_from));
        lock(&self.0).insert(recipe.name.to_owned(), built);
        Ok(())
    }

    async fn built_from(&self, name: &str) -> Result<Option<BuiltFrom>, EngineError> {
        Ok(lock(&self.0).get(name).and_then(|(_, built_from)| built_from.clone()))
    }
}

#[async_trait]
impl ImageStore for Recording {
    async fn list(&self) -> Result<Vec<ListedImage>, EngineError> {
        unreachable!()
    }

    async fn import(
        &self,
        _: &Path,
        _: Option<&str>,
        _: Progress<'_>,
    ) -> Result<Vec<String>, EngineError> {
        unreachable!()
    }

    async fn remove(&self, _: &str) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn prune(&self) -> Result<Pruned, EngineError> {
        unreachable!()
    }
}

#[async_trait]
impl Engine for Recording {
    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let digest = lock(&self.0).get(name).map(|(digest, _)| digest.clone());
        let image = |digest| Image { name: name.to_owned(), digest, ..Image::default() };
        Ok(digest.map(image))
    }

    async fn pull_image(&self, name: &str, _: Progress<'_>) -> Result<(), EngineError> {
        self.put(name, "pulled");
        Ok(())
    }

    async fn check(&self) -> Result<String, EngineError> {
        unreachable!()
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        unreachable!()
    }

    fn supports(&self, _: &SandboxSpec) -> Result<(), Unsupported> {
        unreachable!()
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        unreachable!()
    }

    async fn prepare(&self, _: &SandboxSpec) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn create(&self, _: &SandboxName, _: &SandboxSpec) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn bind(&self, _: &SandboxName, _: &Arc<PackageSet>) -> Result<String, EngineError> {
        unreachable!()
    }

    async fn arm(&self, _: &SandboxName) -> Result<Channel, EngineError> {
        unreachable!()
    }

    async fn pause(&self, _: &SandboxName) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn resume(&self, _: &SandboxName) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn update(&self, _: &SandboxName, _: Resources, _: u32) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn state(&self, _: &SandboxName) -> Result<SandboxState, EngineError> {
        unreachable!()
    }

    async fn remove(&self, _: &SandboxName) -> Result<(), EngineError> {
        unreachable!()
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        unreachable!()
    }

    async fn sweep_shared(&self, _: LabelFilter<'_>) -> Result<usize, EngineError> {
        unreachable!()
    }
}

#[tokio::test]
async fn images_without_former_ones_share_one_new_base_and_keep_it() {
    let engine = Arc::new(Recording::default());
    engine.put(BASE, "made before");
    let images = LanguageImages::new(Arc::clone(&engine) as _, None);
    let names = ["isolator/go", "isolator/python"];
    let expect = async |base: &str| {
        for name in names {
            let built_from = engine.built_from(name).await.unwrap().unwrap();
            assert_eq!(built_from.base.as_deref(), Some(base), "{name}");
            assert!(images.is_current(name).await.unwrap(), "{name}");
        }
    };
    for name in names {
        images.build(name, Former::Used, &|_| ()).await.unwrap();
    }
    expect("made before").await;
    for name in names {
        images.build(name, Former::Ignored, &|_| ()).await.unwrap();
    }
    expect("pulled").await;
    // As for another description.
    for name in names {
        images.build(name, Former::Used, &|_| ()).await.unwrap();
    }
    expect("pulled").await;
}

#[test]
fn every_built_in_language_has_an_image_of_ours() {
    for name in ["isolator/python", "isolator/javascript", "isolator/go:latest"] {
        assert!(folder(name).is_some(), "{name}");
    }
    for name in ["isolator/base", "isolator/unknown", "python", "isolator/../python"] {
        assert!(folder(name).is_none(), "{name}");
    }
}

#[test]
fn a_context_has_the_files_of_the_build() {
    let context = context(folder("isolator/python").unwrap()).unwrap();
    let mut archive = tar::Archive::new(context.as_slice());
    let names: Vec<_> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned())
        .collect();
    for name in ["Dockerfile", "install.sh", "common.sh", "ca-certificates.crt"] {
        assert!(names.iter().any(|n| n == name), "{name} is not in {names:?}");
    }
}
