//! The templates of all launchers.

mod asked;
mod imports;
mod template;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use isolator_runner::wire::Interpreter;
use tokio::sync::watch;
use tokio::time::Instant;

use self::asked::Asked;
use self::imports::{Cost, Costs, Ready, WORTH_A_FORK};
use self::template::{Bounds, ForkError, Template};
use super::cgroups::Cgroup;
use super::host::Host;
use super::launcher_client::LauncherClient;
use super::layout::{self, IMAGES};
use super::protocol::{Kind, Layer, Part};
use super::{EmbeddedEngine, refused, spec};
use crate::engine::preload::{AwaitedFork, Fork, Forked, Preload};
use crate::engine::{Call, EngineError, SandboxName, SandboxSpec};
use crate::lock::lock;

/// The end of the instance name for the control groups of templates. Nobody leases them.
pub(super) const TEMPLATES: &str = "+template";

/// How long to wait after a template failed before the next try. It doubles with each failure, up to the second.
const RETRY_AFTER: Duration = Duration::from_secs(30);
const LATEST_RETRY: Duration = Duration::from_secs(10 * 60);

/// Most templates for what programs have asked for, of each image and launcher, and how long one that another takes the
/// place of must not have been used.
const MOST_ASKED: usize = 4;
const LEAST_USE: Duration = Duration::from_secs(60);

/// Most of them that are remembered because they failed.
const MOST_FAILED: usize = 32;

/// How long one of them is kept that nobody uses.
const KEPT_UNUSED: Duration = Duration::from_secs(30 * 60);

/// The templates, and the users that they run as.
#[derive(Default)]
pub(super) struct Templates {
    /// By image: one for all templates of it, and nobody else.
    users: Mutex<HashMap<String, u32>>,
    slots: Mutex<Vec<(Key, Arc<Slot>)>>,
    asked: Mutex<Asked>,
    costs: Arc<Mutex<Costs>>,
}

/// What a template is made from.
#[derive(Clone)]
struct Key {
    launcher: Weak<LauncherClient>,
    spec: SandboxSpec,
    preload: Preload,
    modules: Vec<String>,
    /// Whether it is made for just these modules because programs asked for them. The plain ones have those of the language, or
    /// none.
    is_learned: bool,
    user: u32,
}

impl Key {
    /// Whether both are for the same sandboxes.
    fn is_beside(&self, other: &Self) -> bool {
        self.launcher.ptr_eq(&other.launcher)
            && self.spec.image.digest == other.spec.image.digest
            && self.spec.workdir == other.spec.workdir
            && self.preload == other.preload
    }

    fn is_like(&self, other: &Self) -> bool {
        self.is_beside(other)
            && self.modules == other.modules
            && self.is_learned == other.is_learned
    }

    /// Of the one that is made for a set of modules that programs asked for.
    fn of_learned(&self, modules: &[String]) -> Self {
        Self { modules: modules.to_vec(), is_learned: true, ..self.clone() }
    }
}

/// The place of a template.
struct Slot {
    state: Mutex<State>,
    /// Wakes those who wait for the first one.
    made: watch::Sender<()>,
}

/// A running template; whoever holds the lock forks it.
type Running = Arc<tokio::sync::Mutex<Template>>;

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// The modules that the last one had.
    loaded: HashSet<String>,
    used: Option<Instant>,
    is_being_made: bool,
    failed: Option<Failure>,
}

/// Why there is none.
struct Failure {
    why: String,
    retry_at: Instant,
    retry_after: Duration,
}

/// What a slot has for a request.
enum Found {
    Running(Running),
    BeingMade,
    Failed(String),
}

impl Slot {
    fn new() -> Self {
        Self { state: Mutex::default(), made: watch::Sender::new(()) }
    }

    fn look(&self) -> Found {
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        match (&state.running, &state.failed) {
            (Some(running), _) => Found::Running(Arc::clone(running)),
            (None, Some(failure)) => Found::Failed(failure.why.clone()),
            (None, None) => Found::BeingMade,
        }
    }

    fn is_ready(&self) -> bool {
        lock(&self.state).running.is_some()
    }

    /// Whether the caller must now have a new one made, and put it here.
    fn begins(&self) -> bool {
        let mut state = lock(&self.state);
        let is_waiting = state.failed.as_ref().is_some_and(|it| Instant::now() < it.retry_at);
        let begins = !state.is_being_made && !is_waiting;
        state.is_being_made |= begins;
        begins
    }

    /// Takes the new one. The last one ends with the requests that use it.
    fn put(&self, made: Result<Template, String>) {
        let mut state = lock(&self.state);
        state.is_being_made = false;
        match made {
            Ok(template) => {
                state.loaded.clone_from(template.loaded());
                state.running = Some(Arc::new(tokio::sync::Mutex::new(template)));
                state.failed = None;
            }
            Err(why) => {
                // Whoever wanted to fork it tells of it.
                tracing::debug!(error = %why, "a template could not be made");
                state.fail(why);
            }
        }
        drop(state);
        self.made.send_replace(());
    }

    /// Gives up one that could not be forked.
    fn give_up(&self, template: &Running, was_good: bool, why: &str) {
        let mut state = lock(&self.state);
        if state.running.as_ref().is_some_and(|running| Arc::ptr_eq(running, template)) {
            state.running = None;
            if !was_good {
                state.fail(why.to_owned());
            }
        }
    }
}

impl State {
    /// When it was used last, or began to be made; never if it failed.
    fn last_use(&self) -> Option<Instant> {
        self.used.filter(|_| self.running.is_some() || self.is_being_made)
    }

    fn fail(&mut self, why: String) {
        let last = self.failed.as_ref().map(|failure| failure.retry_after);
        let retry_after = last.map_or(RETRY_AFTER, |last| LATEST_RETRY.min(last * 2));
        self.failed = Some(Failure { why, retry_at: Instant::now() + retry_after, retry_after });
    }
}

impl Templates {
    /// The user who may enter a new sandbox, if templates are made for it.
    pub(super) fn user(&self, host: &Host, spec: &SandboxSpec) -> Option<u32> {
        let preload = spec.preload.as_ref()?;
        if preload.interpreter != Interpreter::Python {
            return None;
        }
        let mut users = lock(&self.users);
        if let Some(user) = users.get(&spec.image.digest) {
            return Some(*user);
        }
        let user = host.next_template_user()?;
        users.insert(spec.image.digest.clone(), user);
        Some(user)
    }

    fn slot(&self, key: &Key) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        slots.retain(|(key, _)| key.launcher.strong_count() > 0);
        if let Some((_, slot)) = slots.iter().find(|(found, _)| found.is_like(key)) {
            return Arc::clone(slot);
        }
        // Nothing is made from the image anymore that had this name before.
        let is_current = |found: &Key| {
            found.spec.image.name != key.spec.image.name
                || found.spec.image.digest == key.spec.image.digest
        };
        slots.retain(|(found, _)| is_current(found));
        let slot = Arc::new(Slot::new());
        slots.push((key.clone(), Arc::clone(&slot)));
        slot
    }

    /// What a program imports that the plain template does not have, with what each costs. Empty if all of it is not worth a
    /// fork.
    fn costly<'f>(&self, plain: &Key, fork: &'f AwaitedFork) -> HashMap<&'f str, Cost> {
        let digest = &plain.spec.image.digest;
        let slots = lock(&self.slots);
        let state =
            slots.iter().find(|(key, _)| key.is_like(plain)).map(|(_, slot)| lock(&slot.state));
        let has = |module: &String| {
            plain.modules.contains(module)
                || state.as_ref().is_some_and(|state| state.loaded.contains(module))
        };
        let costs = lock(&self.costs);
        let others = fork.named.iter().filter(|module| !has(module));
        let costly: HashMap<_, _> =
            others.map(|module| (module.as_str(), costs.of(digest, module))).collect();
        if sum(costly.values()) < WORTH_A_FORK { HashMap::new() } else { costly }
    }

    /// The best that is ready for a program: the one made for programs with these imports that saves most, if that is worth a
    /// fork.
    fn best(&self, plain: &Key, fork: &AwaitedFork) -> Option<(Key, Arc<Slot>)> {
        let costly = self.costly(plain, fork);
        let saves =
            |key: &Key| sum(key.modules.iter().filter_map(|module| costly.get(module.as_str())));
        let is_fit = |key: &Key| {
            key.is_learned
                && key.is_beside(plain)
                && key.modules.iter().all(|module| fork.named.contains(module))
                && saves(key) >= WORTH_A_FORK
        };
        let slots = lock(&self.slots);
        let learned = slots.iter().filter(|(key, slot)| is_fit(key) && slot.is_ready());
        let learned = learned.max_by_key(|(key, _)| (saves(key), key.modules.len()));
        let plain = slots.iter().find(|(key, slot)| key.is_like(plain) && slot.is_ready());
        learned.or(plain.filter(|_| !fork.is_there)).cloned()
    }

    /// Counts what a program asks for. Returns the place of a template that must now be made for it.
    fn learn(&self, plain: &Key, fork: &AwaitedFork) -> Option<(Key, Arc<Slot>)> {
        if self.costly(plain, fork).is_empty() {
            return None;
        }
        let is_wanted = lock(&self.asked).count(&plain.spec.image.digest, &fork.named);
        if !is_wanted {
            return None;
        }
        let key = plain.of_learned(&fork.named);
        let mut slots = lock(&self.slots);
        slots.retain(|(key, slot)| {
            let used = lock(&slot.state).last_use();
            let is_unused = used.is_some_and(|used| used.elapsed() > KEPT_UNUSED);
            key.launcher.strong_count() > 0 && !(key.is_learned && is_unused)
        });
        if let Some((_, slot)) = slots.iter().find(|(found, _)| found.is_like(&key)) {
            let slot = Arc::clone(slot);
            return (!slot.is_ready() && slot.begins()).then_some((key, slot));
        }
        make_room(&mut slots, &key)?;
        let slot = Arc::new(Slot::new());
        lock(&slot.state).used = Some(Instant::now());
        slots.push((key.clone(), Arc::clone(&slot)));
        slot.begins().then_some((key, slot))
    }

    /// Ends them all.
    pub(super) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

fn sum<'c>(costs: impl Iterator<Item = &'c Cost>) -> Cost {
    costs.fold(0, |sum, cost| sum.saturating_add(*cost))
}

/// Makes room for a template that programs have asked for. `None` if all that are there were used a moment ago: they are as
/// good. What failed takes no room, but is remembered, so that it is not tried all the time.
fn make_room(slots: &mut Vec<(Key, Arc<Slot>)>, key: &Key) -> Option<()> {
    let beside =
        slots.iter().enumerate().filter(|(_, (other, _))| other.is_learned && other.is_beside(key));
    let (there, failed): (Vec<_>, Vec<_>) = beside
        .map(|(at, (_, slot))| (at, lock(&slot.state).last_use()))
        .partition(|(_, used)| used.is_some());
    let gone = if there.len() >= MOST_ASKED {
        let (at, used) = there.into_iter().min_by_key(|(_, used)| *used)?;
        used.filter(|used| used.elapsed() >= LEAST_USE)?;
        Some(at)
    } else {
        failed.first().filter(|_| failed.len() >= MOST_FAILED).map(|(at, _)| *at)
    };
    gone.map(|at| slots.remove(at));
    Some(())
}

impl EmbeddedEngine {
    /// The instance name for the control groups of templates.
    pub(super) fn templates_instance(&self) -> String {
        format!("{}{TEMPLATES}", self.instance)
    }

    /// What a plain template for a sandbox is made from, if there are any for it.
    fn key(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        with_modules: bool,
    ) -> Option<(Key, Arc<LauncherClient>)> {
        let user = self.templates.user(self.host().ok()?, spec)?;
        let preload = spec.preload.clone()?;
        let launcher = self.with_live(Call::Preload, name, |live| Ok(live.launcher())).ok()??;
        let modules = if with_modules { preload.modules.clone() } else { Vec::new() };
        let spec = spec.clone();
        let weak = Arc::downgrade(&launcher);
        Some((Key { launcher: weak, spec, preload, modules, is_learned: false, user }, launcher))
    }

    /// Counts what a program asks for, and begins to make the templates that it shows to be missing.
    pub(super) fn make_templates_for(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        fork: &AwaitedFork,
    ) {
        let Some((plain, launcher)) = self.key(name, spec, fork.with_modules) else { return };
        if !fork.is_there {
            let slot = self.templates.slot(&plain);
            if !slot.is_ready() && slot.begins() {
                self.make_template(&launcher, &plain, &slot);
            }
        }
        if let Some((key, slot)) = self.templates.learn(&plain, fork) {
            self.make_template(&launcher, &key, &slot);
        }
    }

    pub(super) fn can_fork_template(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        fork: &AwaitedFork,
    ) -> bool {
        let key = self.key(name, spec, fork.with_modules);
        key.is_some_and(|(plain, _)| self.templates.best(&plain, fork).is_some())
    }

    pub(super) async fn fork_template(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        fork: Fork,
    ) -> Result<Forked, EngineError> {
        let (with_modules, is_awaited) = match &fork {
            Fork::Spare { with_modules } => (*with_modules, false),
            Fork::Awaited(fork) => (fork.with_modules, true),
        };
        let Some((plain, launcher)) = self.key(name, spec, with_modules) else {
            return Ok(Forked::No(None));
        };
        let (process, cgroup) = self.with_live(Call::Preload, name, |live| {
            Ok((Arc::clone(&live.process), live.cgroup.clone()))
        })?;
        let (key, slot) = match &fork {
            Fork::Spare { .. } => (plain.clone(), self.templates.slot(&plain)),
            Fork::Awaited(fork) => match self.templates.best(&plain, fork) {
                Some(best) => best,
                None => return Ok(Forked::No(None)),
            },
        };
        let mut made = slot.made.subscribe();
        let mut found = slot.look();
        if !matches!(found, Found::Running(_)) && slot.begins() {
            self.make_template(&launcher, &key, &slot);
        }
        if matches!(found, Found::BeingMade) && !is_awaited {
            // The sender is in the slot.
            let _ = made.changed().await;
            found = slot.look();
        }
        let template = match found {
            Found::Running(template) => template,
            Found::BeingMade => return Ok(Forked::No(None)),
            Found::Failed(why) => return Ok(Forked::No(Some(why))),
        };
        let mut running = template.lock().await;
        if running.is_old() && slot.begins() {
            self.make_template(&launcher, &key, &slot);
        }
        let age = running.age();
        let forked = running.fork(spec.user, process.as_fd()).await;
        // The next fork does not wait until this one has its place.
        drop(running);
        let placed = match forked {
            Ok(arriving) => arriving.place(cgroup).await,
            Err(error) => Err(error),
        };
        let Err(error) = placed else { return Ok(Forked::Yes { modules: key.modules }) };
        let image = &spec.image.name;
        tracing::warn!(%image, %error, "a template could not be forked");
        slot.give_up(&template, age > RETRY_AFTER, &error.to_string());
        match error {
            ForkError::NotForked(_) => Ok(Forked::No(None)),
            ForkError::Lost(message) => Err(refused(Call::Preload, message)),
        }
    }

    /// Makes a template in the background.
    fn make_template(&self, launcher: &Arc<LauncherClient>, key: &Key, slot: &Arc<Slot>) {
        if let Err(error) = self.begin_template(launcher, key, slot) {
            slot.put(Err(error.to_string()));
        }
    }

    fn begin_template(
        &self,
        launcher: &Arc<LauncherClient>,
        key: &Key,
        slot: &Arc<Slot>,
    ) -> Result<(), EngineError> {
        let host = self.host()?;
        let Key { spec, preload, modules, is_learned, user, .. } = key;
        let held = self.hold(&spec.image)?;
        let name = format!("isolator-template-{}", uuid::Uuid::new_v4().simple());
        let instance = self.templates_instance();
        let cgroup = host.groups.as_ref().map(|groups| Cgroup::new(groups, &instance, &name));
        let parts = spec::Parts {
            root: &layout::root_of(&name),
            host,
            cgroup: cgroup.as_ref(),
            env: &held.image().description.env,
            ids: None,
            is_entered: false,
        };
        let oci = spec::template(spec, preload, modules, *user, &parts);
        let layer = Layer { size: spec.limits.tmp.as_bytes(), inodes: spec.limits.inodes };
        let kind = Kind::Image {
            image: Path::new(IMAGES).join(held.image().relative_root()),
            layer: Some(layer),
            part: Part::Template { program: spec::programs(preload, parts.env) },
        };
        if let Some(groups) = &host.groups {
            groups.make_instance(&instance).map_err(|error| refused(Call::Preload, error))?;
        }
        let bounds = Bounds {
            memory: if modules.is_empty() { u64::MAX } else { preload.memory.as_bytes() },
            is_learned: *is_learned,
        };
        let (launcher, slot, tasks) = (Arc::clone(launcher), Arc::clone(slot), self.tasks.clone());
        let (costs, digest) = (Arc::clone(&self.templates.costs), spec.image.digest.clone());
        self.tasks.spawn(async move {
            let learn = |ready: &Ready<'_>| lock(&costs).learn(&digest, ready);
            let freezer = cgroup.as_ref().and_then(Cgroup::separate_freezer);
            let created = launcher.create(&name, oci, kind, freezer).await;
            // A template that is not ready yet does not keep a launcher.
            drop(launcher);
            let made = match created {
                Ok(created) => Template::new(created, cgroup, held, bounds, &tasks, learn).await,
                Err(error) => Err(error),
            };
            slot.put(made);
        });
        Ok(())
    }
}
