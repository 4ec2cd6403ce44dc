//! The launchers of an engine: which one makes a sandbox, and what happens if it does not.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::cgroups::Cgroup;
use super::launcher_client::{Created, LauncherClient};
use super::protocol::{Devices, Kind, LauncherPaths};
use super::{EmbeddedEngine, refused};
use crate::engine::{Call, EngineError};
use crate::lock::lock;

/// Most launchers for the same images. Each makes one sandbox at a time, which keeps one core busy.
const LAUNCHERS: usize = 2;

/// After this time the processes of a sandbox that is being made are killed: somebody has stopped one of them, and its launcher
/// waits for it. It takes 30 ms, and some seconds on a machine that has far too much to do.
const STOPPED_AFTER: Duration = Duration::from_secs(8);

/// The images whose sandboxes a launcher makes.
///
/// A template can signal what its launcher has made, and it holds code of its image. So an image with templates has launchers of
/// its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Images {
    /// The one with this digest.
    One(String),
    /// All without templates.
    Others,
}

impl EmbeddedEngine {
    /// The launcher with the fewest requests. Starts one if there is none, or if all have something to do.
    pub(super) async fn launcher(
        &self,
        images: Images,
    ) -> Result<Arc<LauncherClient>, EngineError> {
        let host = self.host()?;
        let mut launchers = self.launchers.lock().await;
        launchers.retain(|(of, launcher)| {
            launcher.is_healthy() && (*of == images || self.is_in_use(of))
        });
        let fit = || launchers.iter().filter(|(of, _)| *of == images).map(|(_, it)| it);
        let least = fit().min_by_key(|launcher| launcher.waiting());
        if let Some(least) = least
            && (least.waiting() == 0 || fit().count() >= LAUNCHERS)
        {
            return Ok(Arc::clone(least));
        }
        let paths = LauncherPaths {
            images: self.store.images(),
            shared: self.shared(),
            groups: host.version_two_mount.clone(),
            favordynmods: host.favorable_groups().filter(|_| self.settings.favordynmods),
            building: None,
            devices: if host.grant.is_none() { Devices::Own } else { Devices::Host },
        };
        let program = &self.settings.program;
        let started = LauncherClient::start(program, paths, host.grant.as_ref(), &self.tasks).await;
        let started = Arc::new(started.map_err(|error| refused(Call::Prepare, error))?);
        launchers.push((images, Arc::clone(&started)));
        Ok(started)
    }

    /// Whether a launcher's images are still used. Its sandboxes end with it.
    fn is_in_use(&self, images: &Images) -> bool {
        match images {
            Images::One(digest) => {
                lock(&self.held).get(digest).is_some_and(|held| held.strong_count() > 0)
            }
            Images::Others => true,
        }
    }

    /// Has a launcher make a sandbox.
    pub(super) async fn make(
        launcher: &LauncherClient,
        name: &str,
        oci: serde_json::Value,
        kind: Kind,
        cgroup: Option<&Cgroup>,
    ) -> Result<Created, String> {
        let freezer = cgroup.and_then(Cgroup::separate_freezer);
        let mut made = pin!(launcher.create(name, oci, kind, freezer));
        if let Ok(made) = tokio::time::timeout(STOPPED_AFTER, &mut made).await {
            return made;
        }
        if let Some(cgroup) = cgroup.cloned() {
            tracing::warn!(sandbox = name, "it was not made in time, so its processes are killed");
            let killed = tokio::task::spawn_blocking(move || cgroup.kill_unfinished()).await;
            killed.map_err(io::Error::other).flatten().map_err(|error| error.to_string())?;
        }
        made.await
    }
}
