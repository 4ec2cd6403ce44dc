//! Sets of packages: each sandbox is given one when its request has come or when its program asks for one, and sees no other.

use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use isolator_runner::paths;

use super::binder_client::BindError;
use super::live::{BoundSet, Live};
use super::{EmbeddedEngine, refused};
use crate::engine::{Call, EngineError, SandboxName};
use crate::packages::PackageSet;

impl EmbeddedEngine {
    /// Mounts a set in a sandbox, which `gives` notes before. Returns where it is there.
    pub(super) async fn bind_set(
        &self,
        name: &SandboxName,
        set: &Arc<PackageSet>,
        gives: impl FnOnce(&mut Live, BoundSet) -> io::Result<()> + Send,
    ) -> Result<String, EngineError> {
        let path = below(&set.folder, &self.settings.packages).ok_or_else(|| {
            let (folder, all) = (set.folder.display(), self.settings.packages.display());
            refused(Call::Bind, format!("{folder} is not in {all}"))
        })?;
        let bound =
            BoundSet { set: Arc::downgrade(set), hash: set.hash.clone(), path: path.to_owned() };
        // Noted before the call, whatever becomes of that.
        let (launcher, process) = self.with_live(Call::Bind, name, |live| {
            gives(live, bound)?;
            Ok((live.launcher(), Arc::clone(&live.process)))
        })?;
        let launcher = launcher.ok_or_else(|| refused(Call::Bind, "its launcher has ended"))?;
        let (path, all) = (path.to_owned(), self.settings.packages.clone());
        // In a task, because it must not be cut short.
        let bound = self.tasks.spawn(async move {
            let binder = launcher.binder().ok_or(BindError::NoFolder(all))?;
            binder.bind(&path, &process).await
        });
        let bound = bound.await.map_err(|error| refused(Call::Bind, error))?;
        bound.map_err(|error| refused(Call::Bind, error))?;
        Ok(paths::PACKAGES.to_owned())
    }
}

/// The path of a folder below another.
fn below<'a>(folder: &'a Path, all: &Path) -> Option<&'a Path> {
    let path = folder.strip_prefix(all).ok()?;
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && path.components().next().is_some()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_below_the_folder_of_all_sets() {
        let all = Path::new("/data/sets");
        assert_eq!(below(Path::new("/data/sets/a/files"), all), Some(Path::new("a/files")));
        for bad in ["/data/sets", "/data/setsx/a", "/data/sets/../a", "/etc"] {
            assert_eq!(below(Path::new(bad), all), None, "{bad}");
        }
    }
}
