//! The engine that needs no other program: sandboxes made by `libcontainer`, from images of our own
//! store.
//!
//! A [`launcher`](Launcher), a small process beside the server, makes sandboxes and passes on the stream
//! to the runner in each, which is process 1 there. What happens to a sandbox later, the server does
//! itself: freezing, thawing and limits are writes to its [control groups](cgroup), and its end is that
//! of process 1, of which the server holds a descriptor.

mod cgroup;
pub mod launch;
mod launcher;
mod protocol;
mod spec;
pub mod store;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use isolator_runner::place;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::io::ReaderStream;

use self::cgroup::{Cgroup, Hierarchies};
use self::launch::{IMAGES, SHARED};
use self::launcher::{Created, Launcher};
use self::protocol::Places;
use self::store::Store;
use crate::engine::{
    Call, Channel, Engine, EngineError, Found, Image, Labels, Progress, SandboxName, SandboxSpec,
    SandboxState, Whose,
};
use crate::limits::Resources;
use crate::lock::lock;
use crate::owner::{LABEL, Owner, PROCESS};

/// Launchers side by side. Each makes one sandbox at a time, and a core can make no more.
const LAUNCHERS: usize = 2;

/// Users of the host that sandboxes' own are mapped to: the range that systemd's description of the use of
/// numbers keeps for containers, in parts of [`spec::IDS`].
const FIRST_ID: u32 = 524_288;
const LAST_ID: u32 = 1_879_048_191;

/// How long a process that was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most of what a runner says that goes into the log, in bytes.
const LONGEST_LOG: u64 = 4096;

/// What the engine needs to know.
pub struct Settings {
    /// The program whose hidden subcommand is the launcher: this one.
    pub program: PathBuf,
    /// The static runner.
    pub runner: &'static [u8],
    /// Directory of the images.
    pub images: PathBuf,
    /// Directory for what the sandboxes of one instance share.
    pub state: PathBuf,
}

/// Makes sandboxes without any other engine.
pub struct EmbeddedEngine {
    settings: Settings,
    labels: Labels,
    /// Name of this instance in paths; it tells the labels.
    instance: String,
    hierarchies: io::Result<Hierarchies>,
    store: Store,
    launchers: tokio::sync::Mutex<Vec<Arc<Launcher>>>,
    next: AtomicUsize,
    next_ids: AtomicU32,
    sandboxes: Mutex<HashMap<SandboxName, Live>>,
}

/// A sandbox that this process has made.
struct Live {
    cgroup: Cgroup,
    /// Process 1.
    process: Arc<OwnedFd>,
    /// The runner's stream and log, until they are asked for.
    streams: Option<(OwnedFd, OwnedFd)>,
}

impl EmbeddedEngine {
    /// The engine of an instance. Nothing is started yet.
    pub fn new(settings: Settings, owner: &Owner) -> Self {
        let store = Store::new(&settings.images);
        // Instances that run side by side begin at different numbers.
        let first = uuid::Uuid::new_v4().as_u128() as u32;
        Self {
            instance: instance_of(owner.labels()),
            labels: owner.labels().clone(),
            hierarchies: Hierarchies::find(Path::new("/")),
            store,
            settings,
            launchers: tokio::sync::Mutex::default(),
            next: AtomicUsize::new(0),
            next_ids: AtomicU32::new(first),
            sandboxes: Mutex::default(),
        }
    }

    /// The images that sandboxes can be made from.
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn hierarchies(&self) -> Result<&Hierarchies, EngineError> {
        self.hierarchies.as_ref().map_err(|error| EngineError::Unreachable {
            address: "this machine".to_owned(),
            message: error.to_string(),
        })
    }

    fn shared(&self) -> PathBuf {
        self.settings.state.join(&self.instance)
    }

    fn cgroup(&self, name: &SandboxName) -> Result<Cgroup, EngineError> {
        Ok(self.hierarchies()?.of(&self.instance, name.as_str()))
    }

    /// Writes what all sandboxes see and none can change.
    fn write_shared(&self) -> io::Result<()> {
        let shared = self.shared();
        let runner = shared.join(RUNNER);
        for file in place::files(self.settings.runner) {
            write(&runner.join(file.path), file.content, file.mode)?;
        }
        for (name, _, content) in spec::FILES {
            write(&shared.join(name), content.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// A launcher that runs, the next in turn.
    async fn launcher(&self) -> Result<Arc<Launcher>, EngineError> {
        let mut launchers = self.launchers.lock().await;
        launchers.retain(|launcher| launcher.is_alive());
        while launchers.len() < LAUNCHERS {
            let places = Places { images: self.store.images(), shared: self.shared() };
            let launcher = Launcher::start(&self.settings.program, places).await;
            launchers.push(Arc::new(launcher.map_err(|error| refused(Call::Prepare, error))?));
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % launchers.len();
        Ok(Arc::clone(&launchers[next]))
    }

    fn next_first_id(&self) -> u32 {
        let ranges = (LAST_ID - FIRST_ID) / spec::IDS;
        FIRST_ID + self.next_ids.fetch_add(1, Ordering::Relaxed) % ranges * spec::IDS
    }
}

/// Directory of the runner in the shared one.
const RUNNER: &str = "runner";

#[async_trait]
impl Engine for EmbeddedEngine {
    async fn check(&self) -> Result<String, EngineError> {
        let hierarchies = self.hierarchies()?;
        hierarchies.check().map_err(|error| refused(Call::Check, error))?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let groups = match hierarchies.version {
            cgroup::Version::One => 1,
            cgroup::Version::Two => 2,
        };
        Ok(format!(
            "embedded engine on Linux {}, control groups version {groups}, images in {}",
            kernel.trim(),
            self.settings.images.display()
        ))
    }

    async fn warnings(&self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }

    async fn prepare(&self, _: &Image) -> Result<(), EngineError> {
        let launchers = self.launchers.lock().await;
        self.write_shared().map_err(|error| refused(Call::Prepare, error))?;
        drop(launchers);
        self.launcher().await.map(|_| ())
    }

    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let found = self.store.find(name).map_err(|error| refused(Call::FindImage, error))?;
        Ok(found.map(|stored| stored.image(name)))
    }

    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        let _ = (name, progress);
        Err(refused(Call::FetchImage, "not yet"))
    }

    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        if spec.network != "none" {
            let message = format!(
                "this engine has no network but loopback, and {:?} was asked for: set \
                 defaultNetworkMode to \"none\", or use the engine \"docker\"",
                spec.network
            );
            return Err(refused(Call::Create, message));
        }
        let stored = self.store.get(&spec.image.digest);
        let stored = stored.map_err(|error| refused(Call::Create, error))?;
        let stored = stored.ok_or_else(|| EngineError::NoSuchImage(spec.image.name.clone()))?;
        stored.make_places(spec).map_err(|error| refused(Call::Create, error))?;
        let cgroup = self.cgroup(name)?;
        let root = Path::new(IMAGES).join(stored.relative_root());
        let parts = spec::Parts {
            root: &root,
            runner: &Path::new(SHARED).join(RUNNER),
            files: Path::new(SHARED),
            cgroup: &cgroup,
            env: &stored.env,
            first_id: Some(self.next_first_id()),
        };
        let oci = spec::sandbox(spec, &parts);
        let launcher = self.launcher().await?;
        let created = launcher.create(name.as_str(), oci).await;
        let Created { stream, log, process } =
            created.map_err(|error| refused(Call::Create, error))?;
        let live = Live { cgroup, process: Arc::new(process), streams: Some((stream, log)) };
        lock(&self.sandboxes).insert(name.clone(), live);
        Ok(())
    }

    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError> {
        let streams = lock(&self.sandboxes).get_mut(name).and_then(|live| live.streams.take());
        let (stream, log) = streams.ok_or_else(|| refused(Call::Arm, "it is not there"))?;
        let channel = || -> io::Result<Channel> {
            rustix::io::ioctl_fionbio(&log, true)?;
            let log = tokio::net::unix::pipe::Receiver::from_owned_fd(log)?;
            tokio::spawn(pass_log_on(name.clone(), log));
            let stream = std::os::unix::net::UnixStream::from(stream);
            stream.set_nonblocking(true)?;
            let (output, input) = tokio::net::UnixStream::from_std(stream)?.into_split();
            let output = ReaderStream::with_capacity(output, READ);
            let output = output.map_err(|error| refused(Call::Arm, error)).boxed();
            Ok(Channel { input: Box::new(input), output })
        };
        channel().map_err(|error| refused(Call::Arm, error))
    }

    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError> {
        let cgroup = self.cgroup(name)?;
        cgroup.freeze().await.map_err(|error| refused(Call::Pause, error))
    }

    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError> {
        self.cgroup(name)?.thaw().map_err(|error| refused(Call::Resume, error))
    }

    async fn update(&self, name: &SandboxName, resources: Resources) -> Result<(), EngineError> {
        self.cgroup(name)?.limit(resources).map_err(|error| refused(Call::Update, error))
    }

    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError> {
        let cgroup = self.cgroup(name)?;
        let process = lock(&self.sandboxes).get(name).map(|live| Arc::clone(&live.process));
        let Some(process) = process else {
            return Ok(if cgroup.exists() { SandboxState::Stopped } else { SandboxState::Gone });
        };
        Ok(if has_ended(&process, Duration::ZERO) {
            SandboxState::Stopped
        } else if cgroup.is_frozen().unwrap_or_default() {
            SandboxState::Paused
        } else {
            SandboxState::Running
        })
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError> {
        let live = lock(&self.sandboxes).remove(name);
        let found = if live.is_some() { None } else { Some(self.find(name)?) };
        let removed = tokio::task::spawn_blocking(move || match (live, found) {
            (Some(live), _) => live.remove(),
            (None, Some(cgroup)) => cgroup.remove(),
            (None, None) => Ok(()),
        });
        removed
            .await
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| refused(Call::Remove, error))
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        let listed = self.hierarchies()?.list().map_err(|error| refused(Call::List, error))?;
        Ok(listed
            .into_iter()
            .map(|(instance, name)| Found {
                name: SandboxName::new(name),
                labels: labels_of(&instance, &self.labels),
            })
            .collect())
    }

    async fn sweep_shared(&self, dead: Whose<'_>) -> Result<usize, EngineError> {
        let failed = |error| refused(Call::Sweep, error);
        let mut swept = 0;
        let hierarchies = self.hierarchies()?;
        for instance in hierarchies.instances().map_err(failed)? {
            if dead(&labels_of(&instance, &self.labels)) {
                hierarchies.remove_instance(&instance).map_err(failed)?;
            }
        }
        for entry in fs::read_dir(&self.settings.state).into_iter().flatten() {
            let entry = entry.map_err(failed)?;
            let instance = entry.file_name().to_string_lossy().into_owned();
            if dead(&labels_of(&instance, &self.labels)) {
                fs::remove_dir_all(entry.path()).map_err(failed)?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}

impl EmbeddedEngine {
    /// The groups of a sandbox of whatever instance.
    fn find(&self, name: &SandboxName) -> Result<Cgroup, EngineError> {
        let hierarchies = self.hierarchies()?;
        let listed = hierarchies.list().map_err(|error| refused(Call::Remove, error))?;
        let instance = listed.into_iter().find(|(_, found)| found == name.as_str());
        let instance = instance.map_or_else(|| self.instance.clone(), |(instance, _)| instance);
        Ok(hierarchies.of(&instance, name.as_str()))
    }
}

/// What is read from a runner at once.
const READ: usize = 64 * 1024;

fn refused(call: Call, error: impl std::fmt::Display) -> EngineError {
    EngineError::Refused { call, message: error.to_string() }
}

/// Whether a process ends within some time.
fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let within = within.try_into().ok();
    poll(&mut fds, within.as_ref()).is_ok_and(|ready| ready > 0)
}

impl Live {
    /// Kills the sandbox, waits until process 1 and with it every other is gone, and removes its groups.
    fn remove(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.process, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        // What is frozen by the first version's freezer dies when it is thawed.
        let _ = self.cgroup.thaw();
        if !has_ended(&self.process, PATIENCE) {
            return Err(io::Error::other("its process 1 could not be killed"));
        }
        self.cgroup.remove()
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Another name first: a program that runs can't be written.
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path)
}

/// What the runner says besides its frames is for the log.
async fn pass_log_on(name: SandboxName, log: impl tokio::io::AsyncRead + Unpin) {
    let mut lines = BufReader::new(log.take(LONGEST_LOG)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::warn!(sandbox = %name, "the runner said: {line}");
    }
}

/// Labels as a file's name: this engine has nothing but names to keep them in. The rest of them is the same
/// for everything that can be found on a machine.
fn instance_of(labels: &Labels) -> String {
    let process = labels.get(PROCESS).map_or(String::new(), |process| process.replace('/', "+"));
    format!("{}+{process}", labels.get(LABEL).map_or("", String::as_str))
}

fn labels_of(instance: &str, ours: &Labels) -> Labels {
    let mut labels = ours.clone();
    let (id, process) = instance.split_once('+').unwrap_or((instance, ""));
    labels.insert(LABEL.to_owned(), id.to_owned());
    labels.insert(PROCESS.to_owned(), process.replace('+', "/"));
    labels
}
