//! The embedded engine, which needs no other program: it makes sandboxes from the images of our own store.
//!
//! A `Launcher`, a small process next to the server, makes each sandbox and hands over the stream to its runner, which is
//! process 1 there. Everything later the server does itself: freezing, thawing and limits are writes to control groups, and a
//! sandbox has ended when its process 1 has. The server holds a descriptor of that.

mod binder_client;
mod build;
mod build_limits;
mod cgroups;
mod host;
mod images;
mod labels;
pub mod launcher;
mod launcher_client;
mod launchers;
mod layout;
mod live;
mod packages;
mod packet_socket;
mod pidfd;
mod plan;
mod protocol;
mod rights;
mod rootless;
mod shared;
mod spec;
mod tools;
mod zygotes;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use async_trait::async_trait;
use tokio_util::task::TaskTracker;

pub use self::build::ImageBuild;
use self::cgroups::Cgroup;
use self::host::{Host, HostError};
use self::labels::{TEMPLATES, instance_of, labels_of};
use self::launchers::{Launchers, ServedImages, max_launchers};
use self::layout::IMAGES;
use self::live::Live;
use self::plan::Users;
use self::zygotes::Templates;
use crate::engine::instance::Instance;
use crate::engine::limits::{ByteSize, LimitKind, Resources};
use crate::engine::preload::{AwaitedFork, Fork, Forked, Imported};
use crate::engine::store::{Held, Store, StoreError};
use crate::engine::{
    Call, Channel, Engine, EngineError, Image, LabelFilter, Labels, ListedSandbox, Progress,
    SandboxName, SandboxSpec, SandboxState, ToolGroup, Unsupported, WaitingMemory, Warning,
    refused,
};
use crate::folders;
use crate::lock::lock;
use crate::packages::PackageSet;

/// The settings of an embedded engine.
pub struct Settings {
    /// The program that is started as the launcher: this one.
    pub program: PathBuf,
    /// The static runner.
    pub runner: &'static [u8],
    /// The library that a template of Python loads.
    pub template: &'static [u8],
    /// Directory of the image store.
    pub images: PathBuf,
    /// Directory of the sets of packages. It is made if it is not there.
    pub packages: PathBuf,
    /// Directory for the files that the sandboxes of an instance share.
    pub state: PathBuf,
    /// Whether launchers of root tell the kernel to favour changes of control groups. It holds for the whole
    /// machine.
    pub favordynmods: bool,
}

/// An engine inside this process.
pub struct EmbeddedEngine {
    settings: Settings,
    labels: Labels,
    /// Name of this instance in paths, from which its labels can be restored.
    instance: String,
    host: Result<Host, Arc<HostError>>,
    store: Store,
    launchers: tokio::sync::Mutex<Launchers>,
    max_launchers: usize,
    sandboxes: Mutex<HashMap<SandboxName, Live>>,
    /// Images that sandboxes use, by digest.
    held: Mutex<HashMap<String, Weak<Held>>>,
    complete: Mutex<shared::Complete>,
    templates: Templates,
    tasks: TaskTracker,
}

impl EmbeddedEngine {
    /// The engine of an instance. Nothing is started yet.
    pub fn new(settings: Settings, instance: &Instance) -> Self {
        Self {
            instance: instance_of(instance.labels()),
            labels: instance.labels().clone(),
            host: Host::find().map_err(Arc::new),
            store: Store::new(&settings.images),
            settings,
            launchers: tokio::sync::Mutex::default(),
            max_launchers: max_launchers(thread::available_parallelism().map_or(1, usize::from)),
            sandboxes: Mutex::default(),
            held: Mutex::default(),
            complete: Mutex::default(),
            templates: Templates::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// The images that sandboxes can be made from.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Does work on a thread that may block. The end of the engine waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.tasks.spawn_blocking(work).await.map_err(io::Error::other).flatten()
    }

    fn host(&self) -> Result<&Host, EngineError> {
        self.host.as_ref().map_err(|error| EngineError::Unusable(Arc::clone(error).into()))
    }

    /// Holds an image, which stays in the store as long as a sandbox uses it.
    fn hold(&self, image: &Image) -> Result<Arc<Held>, EngineError> {
        let mut images = lock(&self.held);
        if let Some(held) = images.get(&image.digest).and_then(Weak::upgrade) {
            if held.is_there() {
                return Ok(held);
            }
            // Its templates have the files of an image that was deleted.
            self.templates.end_those_of(&image.digest);
        }
        images.retain(|_, held| held.strong_count() > 0);
        let gone = || EngineError::NoSuchImage(image.name.clone());
        let stored = self.store.get(&image.digest).map_err(|e| refused(Call::Create, e))?;
        let held = match stored.ok_or_else(gone)?.hold() {
            Err(StoreError::NoSuchImage(_)) => return Err(gone()),
            held => Arc::new(held.map_err(|error| refused(Call::Create, error))?),
        };
        images.insert(image.digest.clone(), Arc::downgrade(&held));
        Ok(held)
    }

    /// Calls `act` with a sandbox that this process has made.
    fn with_live<T>(
        &self,
        call: Call,
        name: &SandboxName,
        act: impl FnOnce(&mut Live) -> io::Result<T>,
    ) -> Result<T, EngineError> {
        match lock(&self.sandboxes).get_mut(name) {
            Some(live) => act(live).map_err(|error| refused(call, error)),
            None => Err(refused(call, "there is no such sandbox")),
        }
    }

    /// The groups of a sandbox that another process made, or that this one stopped waiting for.
    fn groups_of_unknown(&self, name: &SandboxName) -> io::Result<Option<Cgroup>> {
        let Ok(Host { groups: Some(groups), .. }) = &self.host else { return Ok(None) };
        let found = groups.list()?.into_iter().find(|(_, found)| found == name.as_str());
        Ok(found.map(|(instance, _)| Cgroup::new(groups, &instance, name.as_str())))
    }
}

#[async_trait]
impl Engine for EmbeddedEngine {
    async fn check(&self) -> Result<String, EngineError> {
        let host = self.host()?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(format!(
            "embedded engine on Linux {}, {}, images in {}",
            kernel.trim(),
            host.describe(),
            self.settings.images.display()
        ))
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        Ok(self.host()?.warnings())
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), EngineError> {
        self.templates.image_is(&spec.image);
        {
            // Otherwise two pools could write the same files at the same time.
            let _launchers = self.launchers.lock().await;
            self.write_shared().map_err(|error| self.not_written(&error))?;
        }
        self.launcher(ServedImages::Others).await.map(|_| ())
    }

    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let found = self.store.find(name).map_err(|e| store_refused(Call::FindImage, e))?;
        Ok(found.map(|stored| stored.image(name)))
    }

    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        let pulled = self.store.pull(name, progress).await;
        pulled.map(|_| ()).map_err(|error| store_refused(Call::FetchImage, error))
    }

    fn supports(&self, spec: &SandboxSpec) -> Result<(), Unsupported> {
        if spec.network != "none" {
            return Err(Unsupported::Network(spec.network.clone()));
        }
        if let Some(runtime) = &spec.runtime {
            return Err(Unsupported::Runtime(runtime.clone()));
        }
        let Ok(host) = &self.host else { return Ok(()) };
        match host.unenforced() {
            unenforced if unenforced.is_empty() || spec.allow_unlimited => Ok(()),
            unenforced => Err(Unsupported::WithoutLimits { unenforced, why: host.how_to_limit() }),
        }
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        self.host.as_ref().map(Host::unenforced).unwrap_or_default()
    }

    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        let host = self.host()?;
        let held = self.hold(&spec.image)?;
        let made = held.make_mountpoints(&spec::directories(spec), &spec::files());
        made.map_err(|error| store_refused(Call::Create, error))?;
        let cgroup =
            host.groups.as_ref().map(|groups| Cgroup::new(groups, &self.instance, name.as_str()));
        let users =
            host.next_ids().map(|ids| Users { ids, entered_by: self.templates.user(host, spec) });
        let parts = spec::SpecParts {
            image: &Path::new(IMAGES).join(held.image().relative_root()),
            host,
            cgroup: cgroup.as_ref(),
            env: &held.image().description.env,
        };
        let plan = spec::sandbox(spec, users, parts);
        let entered_by = users.and_then(|users| users.entered_by);
        let images = entered_by
            .map_or(ServedImages::Others, |_| ServedImages::One(spec.image.digest.clone()));
        let launcher = self.launcher(images).await?;
        let created = Self::make(&launcher, name.as_str(), plan, cgroup.as_ref()).await;
        let created = created.map_err(|error| refused(Call::Create, error))?;
        let live = Live::new(created, cgroup, &launcher, held);
        lock(&self.sandboxes).insert(name.clone(), live);
        Ok(())
    }

    fn asked_for(&self, name: &SandboxName, spec: &Arc<SandboxSpec>, fork: &AwaitedFork) {
        self.make_template_for(name, spec, fork);
    }

    fn can_fork(&self, name: &SandboxName, spec: &Arc<SandboxSpec>, fork: &AwaitedFork) -> bool {
        self.can_fork_template(name, spec, fork)
    }

    fn can_fork_kernel(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        with_modules: bool,
    ) -> Option<String> {
        self.can_fork_kernel_template(name, spec, with_modules)
    }

    fn kernel_not_ready(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        with_modules: bool,
        why: &str,
    ) {
        self.give_up_kernel_template(name, spec, with_modules, why);
    }

    fn imported(&self, name: &SandboxName, spec: &Arc<SandboxSpec>, imported: Imported<'_>) {
        self.learn_imports(name, spec, imported);
    }

    async fn fork(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        fork: Fork,
    ) -> Result<Forked, EngineError> {
        self.fork_template(name, spec, fork).await
    }

    fn not_ready(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        modules: &[String],
        why: &str,
    ) {
        self.give_up_template(name, spec, modules, why);
    }

    fn templates(&self) -> Option<usize> {
        Some(self.templates.ready())
    }

    async fn bind(&self, name: &SandboxName, set: &Arc<PackageSet>) -> Result<String, EngineError> {
        self.bind_set(name, set, Live::give).await
    }

    async fn bind_running(
        &self,
        name: &SandboxName,
        set: &Arc<PackageSet>,
    ) -> Result<String, EngineError> {
        self.bind_set(name, set, Live::give_while_running).await
    }

    async fn withdraw(&self, hash: &str) -> Result<(), EngineError> {
        self.templates.end_those_with(hash);
        Ok(())
    }

    async fn tool_group(
        &self,
        name: String,
        memory: ByteSize,
        processes: u32,
    ) -> Option<Box<dyn ToolGroup>> {
        self.group_for_tool(name, memory, processes).await
    }

    async fn memory(&self, names: Vec<SandboxName>) -> Option<WaitingMemory> {
        // Without groups the processes of a sandbox are unknown.
        let groups = self.host().ok()?.groups.clone()?;
        let own = self.instance.clone();
        let measured = self.tasks.spawn_blocking(move || {
            let listed = groups.list().ok()?;
            let is_named = |found: &str| names.iter().any(|name| name.as_str() == found);
            let of_named = listed.iter().filter(|(_, name)| is_named(name));
            let instances: HashSet<_> =
                of_named.map(|(instance, _)| instance.as_str()).chain([own.as_str()]).collect();
            let mut memory = WaitingMemory::default();
            for (instance, name) in &listed {
                let of_group = || Cgroup::new(&groups, instance, name).proportional_memory();
                if is_named(name) {
                    memory.count += 1;
                    memory.sandboxes += of_group();
                } else if instance.strip_suffix(TEMPLATES).is_some_and(|of| instances.contains(of))
                {
                    memory.templates += of_group();
                }
            }
            Some(memory)
        });
        measured.await.ok()?
    }

    fn is_intact(&self, name: &SandboxName) -> bool {
        let has_image = lock(&self.sandboxes).get(name).is_none_or(|live| live.image().is_there());
        has_image && self.has_shared()
    }

    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError> {
        self.with_live(Call::Arm, name, |live| live.open(name, &self.tasks))
    }

    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError> {
        let cgroup = self.with_live(Call::Pause, name, |live| Ok(live.cgroup.clone()))?;
        let can_freeze = self.host()?.can_freeze();
        let Some(cgroup) = cgroup.filter(|_| can_freeze) else { return Ok(()) };
        cgroup.freeze().await.map_err(|error| refused(Call::Pause, error))
    }

    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError> {
        self.with_live(Call::Resume, name, |live| {
            live.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.thaw())
        })
    }

    async fn update(
        &self,
        name: &SandboxName,
        resources: Resources,
        processes: u32,
    ) -> Result<(), EngineError> {
        let host = self.host()?;
        self.with_live(Call::Update, name, |live| {
            live.cgroup.as_ref().map_or(Ok(()), |cgroup| {
                cgroup.limit(resources, processes, |controller| host.limits(controller))
            })
        })
    }

    async fn used_memory(&self, name: &SandboxName) -> Result<Option<u64>, EngineError> {
        if !self.host()?.limits("memory") {
            return Ok(None);
        }
        let used = |live: &mut Live| live.cgroup.as_ref().map(Cgroup::used_memory).transpose();
        self.with_live(Call::UsedMemory, name, used)
    }

    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError> {
        if let Some(live) = lock(&self.sandboxes).get(name) {
            return Ok(live.state());
        }
        let failed = |error| refused(Call::State, error);
        let unknown = self.groups_of_unknown(name).map_err(failed)?;
        unknown.map_or(Ok(SandboxState::Gone), |groups| groups.state()).map_err(failed)
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError> {
        let failed = |error| refused(Call::Remove, error);
        let live = lock(&self.sandboxes).remove(name);
        let (process, cgroup) = match live {
            Some(live) => (Some(live.process), live.cgroup),
            None => (None, self.groups_of_unknown(name).map_err(failed)?),
        };
        self.blocking(move || live::remove(process, cgroup)).await.map_err(failed)?;
        self.end_unused_launchers();
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        let Some(groups) = &self.host()?.groups else {
            // Without groups nothing outlives the launcher.
            let labels = || self.labels.clone();
            let names = lock(&self.sandboxes).keys().cloned().collect::<Vec<_>>();
            return Ok(names
                .into_iter()
                .map(|name| ListedSandbox { name, labels: labels() })
                .collect());
        };
        let listed = groups.list().map_err(|error| refused(Call::List, error))?;
        let listed = listed.into_iter().filter(|(instance, _)| !labels::is_auxiliary(instance));
        let found = |(instance, name): (String, String)| ListedSandbox {
            name: SandboxName::new(name),
            labels: labels_of(&instance, &self.labels),
        };
        Ok(listed.map(found).collect())
    }

    async fn sweep_shared(&self, dead: LabelFilter<'_>) -> Result<usize, EngineError> {
        let failed = |error| refused(Call::Sweep, error);
        let is_dead = |instance: &str| dead(&labels_of(instance, &self.labels));
        if is_dead(&self.instance) {
            // This instance is ending: launchers must end before the files that they use are removed.
            self.templates.clear();
            self.launchers.lock().await.clear();
        }
        if let Ok(Host { groups: Some(groups), .. }) = &self.host {
            self.remove_builds(groups, &is_dead).await.map_err(failed)?;
            let instances = groups.instances().map_err(failed)?;
            for instance in instances.iter().filter(|instance| is_dead(instance)) {
                groups.remove_instance(instance).map_err(failed)?;
            }
        }
        let mut swept = Ok(0);
        for entry in fs::read_dir(&self.settings.state).into_iter().flatten() {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| is_dead(&name.to_string_lossy())) {
                match folders::remove(&path) {
                    Ok(_) => swept = swept.map(|swept| swept + 1),
                    // The others go all the same.
                    Err(error) => swept = Err(failed(at(&path)(error))),
                }
            }
        }
        swept
    }
}

/// Whether other processes can see the sandboxes that this one makes. They find them by their control groups,
/// which not every user can have.
pub fn shows_sandboxes() -> bool {
    Host::find().is_ok_and(|host| host.groups.is_some())
}

/// Adds the path that an error is about.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn store_refused(call: Call, error: StoreError) -> EngineError {
    match error {
        StoreError::NoSuchImage(name) => EngineError::NoSuchImage(name),
        error if error.is_disk_full() => EngineError::DiskFull(error.into()),
        error => refused(call, error),
    }
}
