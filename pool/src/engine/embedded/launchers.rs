//! The launchers of an engine: the choice of one for a sandbox, and the handling of its failure.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cgroups::Cgroup;
use super::launcher_client::{CreateError, LauncherClient, SandboxHandles};
use super::plan::Plan;
use super::protocol::LauncherPaths;
use super::{EmbeddedEngine, refused};
use crate::engine::{Call, EngineError};
use crate::lock::lock;

/// Number of launchers for the same images that are started as soon as the others have something to do, and the maximum number. Each
/// launcher makes one sandbox at a time.
const FIRST_LAUNCHERS: usize = 2;
const MAX_LAUNCHERS: usize = 16;

/// Maximum number of launchers for the same images on a machine with this number of cores. Making a sandbox takes less than half of the
/// CPU time of a call with a short program.
pub(super) fn max_launchers(cores: usize) -> usize {
    cores.div_ceil(2).clamp(FIRST_LAUNCHERS, MAX_LAUNCHERS)
}

/// Whether there are enough launchers, if the least busy one of these has this number of requests. A further one has templates of its
/// own, so it is only started if requests queue.
fn are_enough(launchers: usize, least_waiting: usize, max: usize) -> bool {
    let is_free = least_waiting == 0;
    let is_queue = least_waiting > 1;
    is_free || launchers >= max || (launchers >= FIRST_LAUNCHERS && !is_queue)
}

/// How long launchers beyond the first ones are kept without a request. They would only hold memory.
const KEPT_UNUSED: Duration = Duration::from_secs(10 * 60);

/// Whether a launcher was started for a burst of requests that is over. `earlier` is the number of others for the same images.
fn is_of_past_burst(earlier: usize, unused: Duration) -> bool {
    earlier >= FIRST_LAUNCHERS && unused >= KEPT_UNUSED
}

/// After this time the processes of a sandbox that is being made are killed: one of them was stopped, and its launcher waits
/// for it. Making one takes 5 ms, and some seconds on an overloaded machine.
const STOPPED_AFTER: Duration = Duration::from_secs(8);

/// Time until another try after a launcher could not be started. Until then the others make all sandboxes.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The images whose sandboxes a launcher makes.
///
/// A template can signal what its launcher has made, and it holds code of its image. So an image with templates has launchers of
/// its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServedImages {
    /// The one with this digest.
    One(String),
    /// All without templates.
    Others,
}

/// A running launcher.
pub(super) struct RunningLauncher {
    of: ServedImages,
    client: Arc<LauncherClient>,
    /// The folders that it has mounted.
    mounted: MountedFolders,
    /// The time of the last request for it.
    used: Instant,
}

/// The running launchers.
#[derive(Default)]
pub(super) struct Launchers {
    running: Vec<RunningLauncher>,
    /// When one could not be started, although others were there.
    failed: Option<Instant>,
}

impl Launchers {
    /// Ends all of them.
    pub(super) fn clear(&mut self) {
        self.running.clear();
    }

    /// Whether one more may be started.
    fn may_try(&self) -> bool {
        self.failed.is_none_or(|failed| failed.elapsed() >= RETRY_AFTER)
    }

    /// What serves a request for which no further launcher could be started: what is there.
    fn instead<T>(&mut self, there: Option<T>, error: io::Error) -> Result<T, EngineError> {
        let Some(there) = there else { return Err(refused(Call::Prepare, error)) };
        let retry = RETRY_AFTER;
        tracing::warn!(%error, ?retry, "a further launcher can't be started, so the others do its work");
        self.failed = Some(Instant::now());
        Ok(there)
    }
}

/// The folders that a launcher mounts, by device and inode. It does not see one that was made in the place of another.
#[derive(PartialEq, Eq)]
struct MountedFolders([Option<(u64, u64)>; 3]);

impl MountedFolders {
    fn look(folders: [&Path; 3]) -> Self {
        Self(
            folders.map(|folder| fs::metadata(folder).ok().map(|found| (found.dev(), found.ino()))),
        )
    }
}

impl EmbeddedEngine {
    /// The launcher with the fewest requests. Starts one if there are too few.
    pub(super) async fn launcher(
        &self,
        images: ServedImages,
    ) -> Result<Arc<LauncherClient>, EngineError> {
        let host = self.host()?;
        let mut launchers = self.launchers.lock().await;
        if !self.has_shared() {
            self.write_shared().map_err(|error| self.not_written(&error))?;
        }
        let packages = &self.settings.packages;
        if let Err(error) = fs::create_dir_all(packages) {
            // Only a request with packages needs it, and gets an error then.
            let folder = packages.display();
            tracing::debug!(%folder, %error, "the folder of package sets can't be made");
        }
        let now = self.mounted();
        self.end_unused(&mut launchers.running, &now, Some(&images));
        let is_fit = |running: &RunningLauncher| running.of == images && running.mounted == now;
        let fit = launchers.running.iter().filter(|running| is_fit(running)).count();
        let may_try = launchers.may_try();
        let mut least = None;
        let running = launchers.running.iter_mut().filter(|running| is_fit(running));
        if let Some(running) = running.min_by_key(|running| running.client.waiting()) {
            running.used = Instant::now();
            let client = Arc::clone(&running.client);
            if !may_try || are_enough(fit, client.waiting(), self.max_launchers) {
                return Ok(client);
            }
            least = Some(client);
        }
        let paths = LauncherPaths {
            images: self.store.images(),
            shared: self.shared(),
            packages: packages.is_dir().then(|| packages.clone()),
            groups: host.version_two_mount.clone(),
            favordynmods: host.favorable_groups().filter(|_| self.settings.favordynmods),
            building: None,
        };
        let program = &self.settings.program;
        let started = LauncherClient::start(program, paths, host.grant.as_ref(), &self.tasks).await;
        let client = match started {
            Ok(client) => Arc::new(client),
            Err(error) => return launchers.instead(least, error),
        };
        launchers.running.push(RunningLauncher {
            of: images,
            client: Arc::clone(&client),
            mounted: now,
            used: Instant::now(),
        });
        Ok(client)
    }

    fn mounted(&self) -> MountedFolders {
        MountedFolders::look([&self.store.images(), &self.shared(), &self.settings.packages])
    }

    /// Ends the launchers that are not used anymore, once their sandboxes are gone.
    pub(super) fn end_unused_launchers(&self) {
        let may_end = |running: &RunningLauncher| {
            !running.client.is_healthy() || !self.has_sandboxes(&running.client)
        };
        // The holder of the lock does the same.
        if let Ok(mut launchers) = self.launchers.try_lock()
            && launchers.running.iter().any(may_end)
        {
            self.end_unused(&mut launchers.running, &self.mounted(), None);
        }
    }

    fn end_unused(
        &self,
        launchers: &mut Vec<RunningLauncher>,
        now: &MountedFolders,
        wanted: Option<&ServedImages>,
    ) {
        let mut kept = Vec::new();
        launchers.retain(|running| {
            let earlier = kept.iter().filter(|of| **of == running.of).count();
            let is_of_use = running.mounted == *now
                && !is_of_past_burst(earlier, running.used.elapsed())
                && (wanted == Some(&running.of) || self.is_in_use(&running.of));
            let is_healthy = running.client.is_healthy();
            if is_healthy && is_of_use {
                kept.push(running.of.clone());
            }
            is_healthy && (is_of_use || self.has_sandboxes(&running.client))
        });
    }

    /// Whether a launcher's images are still used. Its sandboxes end with it.
    fn is_in_use(&self, images: &ServedImages) -> bool {
        match images {
            ServedImages::One(digest) => {
                lock(&self.held).get(digest).is_some_and(|held| held.strong_count() > 0)
            }
            ServedImages::Others => true,
        }
    }

    /// Whether a launcher has made a sandbox that is still there, or is being asked for one.
    fn has_sandboxes(&self, launcher: &Arc<LauncherClient>) -> bool {
        // The list has one reference itself.
        Arc::strong_count(launcher) > 1
            || lock(&self.sandboxes).values().any(|live| live.is_made_by(launcher))
    }

    /// Has a launcher make a sandbox.
    pub(super) async fn make(
        launcher: &LauncherClient,
        name: &str,
        plan: Plan,
        cgroup: Option<&Cgroup>,
    ) -> Result<SandboxHandles, CreateError> {
        let mut made = pin!(launcher.create(name, plan));
        if let Ok(made) = tokio::time::timeout(STOPPED_AFTER, &mut made).await {
            return made;
        }
        if let Some(cgroup) = cgroup.cloned() {
            tracing::warn!(sandbox = name, "it was not made in time, so its processes are killed");
            let killed = tokio::task::spawn_blocking(move || cgroup.kill_unfinished()).await;
            killed.map_err(io::Error::other).flatten().map_err(CreateError::NotKilled)?;
        }
        made.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_launcher_for_two_cores_and_a_third_one_only_if_requests_queue() {
        assert_eq!([1, 2, 4, 5, 16, 256].map(max_launchers), [2, 2, 2, 3, 8, 16]);
        assert!(are_enough(1, 0, 2) && !are_enough(1, 1, 2) && are_enough(2, 9, 2));
        assert!(are_enough(2, 1, 8) && !are_enough(2, 2, 8) && are_enough(8, 9, 8));
    }

    #[test]
    fn launchers_of_a_past_burst_end_and_the_first_ones_stay() {
        let [short, long] = [KEPT_UNUSED / 2, KEPT_UNUSED];
        assert!(!is_of_past_burst(1, long) && !is_of_past_burst(2, short));
        assert!(is_of_past_burst(2, long) && is_of_past_burst(15, long));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_further_launcher_the_others_serve_until_the_next_try() {
        let mut launchers = Launchers::default();
        let error = || io::Error::from_raw_os_error(11);
        launchers.instead(None::<u8>, error()).unwrap_err();
        assert!(launchers.may_try());
        assert_eq!(launchers.instead(Some(7), error()).unwrap(), 7);
        assert!(!launchers.may_try());
        tokio::time::advance(RETRY_AFTER).await;
        assert!(launchers.may_try());
    }
}
