//! The templates of all launchers.

mod import_counts;
mod imports;
mod sessions;
mod slots;
mod submodules;
mod template;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use isolator_runner::fork::{AWAITED, SPARE};
use isolator_runner::wire::Interpreter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use self::import_counts::ImportCounts;
use self::imports::{Cost, Costs, Ready, TemplateModules, WORTH_A_FORK};
use self::slots::{Availability, Slot, TemplateKey, make_room};
use self::submodules::Submodules;
use self::template::{Bounds, ForkError, Template, TemplateError};
use super::cgroups::Cgroup;
use super::host::Host;
use super::labels::TEMPLATES;
use super::launcher_client::LauncherClient;
use super::layout::IMAGES;
use super::live::Live;
use super::{EmbeddedEngine, refused, spec};
use crate::engine::preload::{AwaitedFork, Fork, Forked, Imported};
use crate::engine::{Call, EngineError, Image, SandboxName, SandboxSpec};
use crate::lock::lock;

/// How long an unused one is kept.
const KEPT_UNUSED: Duration = Duration::from_secs(30 * 60);

/// The templates, and the users that they run as.
pub(super) struct Templates {
    /// By image: one for all its templates, and for nothing else.
    users: Mutex<HashMap<String, u32>>,
    /// The digest of the image that now has a name.
    images: Mutex<HashMap<String, String>>,
    slots: Mutex<Vec<(TemplateKey, Arc<Slot>)>>,
    /// The sandboxes that are made. When the last pool and the last sandbox of a kind are gone, its templates end.
    specs: Mutex<Vec<Weak<SandboxSpec>>>,
    counts: Arc<Mutex<ImportCounts>>,
    costs: Arc<Mutex<Costs>>,
    submodules: Mutex<Submodules>,
    /// Held while a template is made for what programs have imported: one at a time.
    learning: Arc<Semaphore>,
}

impl Default for Templates {
    fn default() -> Self {
        Self {
            users: Mutex::default(),
            images: Mutex::default(),
            slots: Mutex::default(),
            specs: Mutex::default(),
            counts: Arc::default(),
            costs: Arc::default(),
            submodules: Mutex::default(),
            learning: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Templates {
    /// The user who may enter a new sandbox, if templates are made for it.
    pub(super) fn user(&self, host: &Host, spec: &SandboxSpec) -> Option<u32> {
        let preload = spec.preload.as_ref()?;
        if preload.interpreter != Interpreter::Python || !preload.fork {
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

    fn slot(&self, key: &TemplateKey) -> Arc<Slot> {
        let specs = self.specs_with(&key.spec);
        let is_made = |key: &TemplateKey| specs.iter().any(|spec| key.is_for(spec));
        let mut slots = lock(&self.slots);
        slots.retain(|(key, _)| !key.is_gone() && is_made(key));
        if let Some((_, slot)) = slots.iter().find(|(found, _)| found.is_like(key)) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(Slot::new());
        slots.push((key.kept(), Arc::clone(&slot)));
        slot
    }

    fn existing(&self, key: &TemplateKey) -> Option<Arc<Slot>> {
        let slots = lock(&self.slots);
        slots.iter().find(|(found, _)| found.is_like(key)).map(|(_, slot)| Arc::clone(slot))
    }

    /// The sandboxes that are made, and these.
    fn specs_with(&self, spec: &Arc<SandboxSpec>) -> Vec<Arc<SandboxSpec>> {
        let mut known = lock(&self.specs);
        let mut specs: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        if !specs.iter().any(|other| Arc::ptr_eq(other, spec)) {
            specs.push(Arc::clone(spec));
        }
        *known = specs.iter().map(Arc::downgrade).collect();
        specs
    }

    /// Number of templates that are ready.
    pub(super) fn ready(&self) -> usize {
        lock(&self.slots).iter().filter(|(_, slot)| slot.is_ready()).count()
    }

    /// The modules of the plain template. There is none with packages, so it is the same for all sets.
    fn known(&self, plain: &TemplateKey) -> Arc<TemplateModules> {
        let plain = plain.without_packages();
        let slots = lock(&self.slots);
        let slot = slots.iter().find(|(key, _)| key.is_like(&plain));
        slot.map(|(_, slot)| Arc::clone(&lock(&slot.state).known)).unwrap_or_default()
    }

    /// The imports of a program that the plain template does not have, with their costs. Empty if together they are not worth a
    /// fork.
    fn costly<'n>(
        &self,
        plain: &TemplateKey,
        known: &TemplateModules,
        named: &'n [String],
    ) -> HashMap<&'n str, Cost> {
        let digest = &plain.spec.image.digest;
        let has = |module: &String| plain.modules.contains(module) || known.has(module);
        let costs = lock(&self.costs);
        let others = named.iter().filter(|module| !has(module));
        let costly: HashMap<_, _> =
            others.map(|module| (module.as_str(), costs.of(digest, module))).collect();
        if sum(costly.values()) < WORTH_A_FORK { HashMap::new() } else { costly }
    }

    /// The best that is ready for a program: the one made for programs with these imports that saves most, if that is worth a
    /// fork.
    fn best(&self, plain: &TemplateKey, fork: &AwaitedFork) -> Option<(TemplateKey, Arc<Slot>)> {
        let known = self.known(plain);
        let named = lock(&self.submodules).named(plain, &known, &fork.imports);
        let costly = self.costly(plain, &known, &named);
        let saves = |key: &TemplateKey| {
            sum(key.modules.iter().filter_map(|module| costly.get(module.as_str())))
        };
        let is_fit = |key: &TemplateKey| {
            key.is_learned()
                && key.is_sibling_of(plain)
                && key.modules.iter().all(|module| named.contains(module))
                && saves(key) >= WORTH_A_FORK
        };
        let slots = lock(&self.slots);
        let learned = slots.iter().filter(|(key, slot)| is_fit(key) && slot.is_ready());
        let learned = learned.max_by_key(|(key, _)| (saves(key), key.modules.len()));
        let bare = plain.without_packages();
        let bare = slots.iter().find(|(key, slot)| key.is_like(&bare) && slot.is_ready());
        let (key, slot) = learned.or(bare.filter(|_| !fork.is_there))?;
        // The request that made it has released its set, and this one has the set, so the next template can be made from it.
        let packages = key.packages.as_ref().and(plain.packages.clone());
        Some((TemplateKey { packages, ..key.clone() }, Arc::clone(slot)))
    }

    /// Counts what a program has imported. Returns the place of a template that must now be made for it, and the permit to make
    /// it.
    fn learn(
        &self,
        plain: &TemplateKey,
        imported: Imported<'_>,
    ) -> Option<(TemplateKey, Arc<Slot>, OwnedSemaphorePermit)> {
        let Imported { client, imports, cpu, .. } = imported;
        let known = self.known(plain);
        let named = &lock(&self.submodules).named(plain, &known, imports);
        if self.costly(plain, &known, named).is_empty() {
            return None;
        }
        let is_wanted = lock(&self.counts).count(&plain.content(), named, client, cpu);
        let permit = Arc::clone(&self.learning).try_acquire_owned().ok().filter(|_| is_wanted)?;
        let key = plain.learned(named, client);
        let mut slots = lock(&self.slots);
        slots.retain(|(key, slot)| {
            let used = lock(&slot.state).last_use();
            let is_unused = used.is_some_and(|used| used.elapsed() > KEPT_UNUSED);
            !(key.is_gone() || key.is_learned() && is_unused)
        });
        if let Some((_, slot)) = slots.iter().find(|(found, _)| found.is_like(&key)) {
            let slot = Arc::clone(slot);
            return (!slot.is_ready() && slot.begins()).then_some((key, slot, permit));
        }
        make_room(&mut slots, &key)?;
        let slot = Arc::new(Slot::new());
        lock(&slot.state).used = Some(Instant::now());
        slots.push((key.kept(), Arc::clone(&slot)));
        slot.begins().then_some((key, slot, permit))
    }

    /// Gives up those with just these modules.
    fn give_up(&self, plain: &TemplateKey, modules: &[String], why: &str) {
        let slots = lock(&self.slots);
        let with_them = |key: &TemplateKey| {
            !key.for_sessions && key.is_sibling_of(plain) && key.modules == modules
        };
        for (_, slot) in slots.iter().filter(|(key, _)| with_them(key)) {
            slot.give_up_running(why);
        }
    }

    /// Sets the image that has a name now. The templates of the previous one end, and there are no new ones: no sandbox is made
    /// from it anymore.
    pub(super) fn image_is(&self, image: &Image) {
        lock(&self.images).insert(image.name.clone(), image.digest.clone());
        lock(&self.slots).retain(|(key, _)| !self.is_replaced(&key.spec.image));
    }

    fn is_replaced(&self, image: &Image) -> bool {
        lock(&self.images).get(&image.name).is_some_and(|digest| *digest != image.digest)
    }

    /// Ends those of an image.
    pub(super) fn end_those_of(&self, digest: &str) {
        lock(&self.slots).retain(|(key, _)| key.spec.image.digest != digest);
    }

    /// Ends those with a set of packages.
    pub(super) fn end_those_with(&self, hash: &str) {
        let has_it =
            |key: &TemplateKey| key.packages.as_ref().is_some_and(|bound| bound.hash == hash);
        lock(&self.slots).retain(|(key, _)| !has_it(key));
    }

    /// Ends them all.
    pub(super) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

fn sum<'c>(costs: impl Iterator<Item = &'c Cost>) -> Cost {
    costs.fold(0, |sum, cost| sum.saturating_add(*cost))
}

impl EmbeddedEngine {
    /// The instance name for the control groups of templates.
    pub(super) fn templates_instance(&self) -> String {
        format!("{}{TEMPLATES}", self.instance)
    }

    /// The key of the plain template for a sandbox, if there are templates for it.
    fn key(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        with_modules: bool,
    ) -> Option<(TemplateKey, Arc<LauncherClient>)> {
        let user = self.templates.user(self.host().ok()?, spec)?;
        if self.templates.is_replaced(&spec.image) {
            return None;
        }
        let preload = spec.preload.as_ref()?;
        let of_sandbox =
            |live: &mut Live| Ok((live.launcher(), live.image().image().root(), live.packages()?));
        let (launcher, root, packages) = self.with_live(Call::Preload, name, of_sandbox).ok()?;
        let launcher = launcher?;
        let modules = if with_modules { preload.modules.clone() } else { Vec::new() };
        let (spec, weak) = (Arc::clone(spec), Arc::downgrade(&launcher));
        let (learned_from, for_sessions) = (None, false);
        Some((
            TemplateKey {
                launcher: weak,
                spec,
                root,
                packages,
                modules,
                learned_from,
                for_sessions,
                user,
            },
            launcher,
        ))
    }

    /// Begins to make the template that a program asks for and that is not there.
    pub(super) fn make_template_for(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        fork: &AwaitedFork,
    ) {
        if fork.is_there {
            return;
        }
        let Some((plain, launcher)) = self.key(name, spec, fork.with_modules) else { return };
        let plain = plain.without_packages();
        let slot = self.templates.slot(&plain);
        if !slot.is_ready() && slot.begins() {
            self.make_template(&launcher, &plain, &slot, None);
        }
    }

    pub(super) fn can_fork_template(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        fork: &AwaitedFork,
    ) -> bool {
        let key = self.key(name, spec, fork.with_modules);
        key.is_some_and(|(plain, _)| self.templates.best(&plain, fork).is_some())
    }

    /// Counts what a program has imported, and begins to make a template for what is imported often.
    pub(super) fn learn_imports(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        imported: Imported<'_>,
    ) {
        let key = self.key(name, spec, imported.with_modules);
        let Some((plain, launcher)) = key else { return };
        if let Some((key, slot, permit)) = self.templates.learn(&plain, imported) {
            self.make_template(&launcher, &key, &slot, Some(permit));
        }
    }

    pub(super) async fn fork_template(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        fork: Fork,
    ) -> Result<Forked, EngineError> {
        let (with_modules, word) = match &fork {
            Fork::Spare { with_modules } => (*with_modules, SPARE),
            Fork::Awaited(fork) => (fork.with_modules, AWAITED),
            Fork::Kernel { with_modules } => (*with_modules, AWAITED),
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
            Fork::Kernel { .. } => {
                let key = plain.for_sessions(true);
                let slot = self.templates.slot(&key);
                (key, slot)
            }
        };
        let mut made = slot.made.subscribe();
        let mut found = slot.look();
        if !matches!(found, Availability::Running(_)) && slot.begins() {
            self.make_template(&launcher, &key, &slot, None);
        }
        if matches!(found, Availability::BeingMade) && word == SPARE {
            // The sender is in the slot.
            let _ = made.changed().await;
            found = slot.look();
        }
        let template = match found {
            Availability::Running(template) => template,
            Availability::BeingMade => return Ok(Forked::No(None)),
            Availability::Failed(why) => return Ok(Forked::No(Some(why))),
        };
        let mut running = template.lock().await;
        if running.is_old() && slot.begins() {
            self.make_template(&launcher, &key, &slot, None);
        }
        let forked = running.fork(spec.user, process.as_fd()).await;
        // The next fork does not wait until this one has its place.
        drop(running);
        let placed = match forked {
            Ok(arriving) => arriving.place(cgroup, word).await,
            Err(error) => Err(error),
        };
        let Err(error) = placed else {
            if word == SPARE {
                self.renew_for_sessions(&plain);
            }
            return Ok(Forked::Yes { modules: key.modules });
        };
        let image = &spec.image.name;
        tracing::warn!(%image, %error, "a template could not be forked");
        slot.give_up(&template, &error.to_string());
        match error {
            ForkError::NotForked(_) => Ok(Forked::No(None)),
            ForkError::Lost(error) => Err(refused(Call::Preload, error)),
        }
    }

    /// Gives up a template whose fork did not get ready.
    pub(super) fn give_up_template(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        modules: &[String],
        why: &str,
    ) {
        let image = &spec.image.name;
        tracing::warn!(%image, error = why, "a forked interpreter did not get ready");
        if let Some((plain, _)) = self.key(name, spec, false) {
            self.templates.give_up(&plain, modules, why);
        }
    }

    /// Makes a template in the background. The permit is returned when it is made.
    fn make_template(
        &self,
        launcher: &Arc<LauncherClient>,
        key: &TemplateKey,
        slot: &Arc<Slot>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        if key.for_sessions {
            self.copy_template(key, slot);
        } else if let Err(error) = self.begin_template(launcher, key, slot, permit) {
            slot.put(Err(error.into()));
        }
    }

    fn begin_template(
        &self,
        launcher: &Arc<LauncherClient>,
        key: &TemplateKey,
        slot: &Arc<Slot>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), EngineError> {
        let host = self.host()?;
        let TemplateKey { spec, packages, modules, learned_from, user, .. } = key;
        let Some(preload) = &spec.preload else { return Ok(()) };
        let held = self.hold(&spec.image)?;
        let mut set = None;
        let name = format!("isolator-template-{}", uuid::Uuid::new_v4().simple());
        let instance = self.templates_instance();
        let cgroup = host.groups.as_ref().map(|groups| Cgroup::new(groups, &instance, &name));
        let parts = spec::SpecParts {
            image: &Path::new(IMAGES).join(held.image().relative_root()),
            host,
            cgroup: cgroup.as_ref(),
            env: &held.image().description.env,
        };
        let mut plan = spec::template(spec, preload, modules, *user, learned_from.is_some(), parts);
        if let Some(bound) = packages {
            // It has read what it needs of the set when it is ready.
            set = bound.set.upgrade();
            let is_given = set.is_some() && spec::give_packages(&mut plan, &bound.path);
            if !is_given {
                return Err(refused(Call::Preload, "its set of packages is gone"));
            }
        }
        let bounds = Bounds {
            memory: if modules.is_empty() { u64::MAX } else { preload.memory.as_bytes() },
            is_learned: learned_from.is_some(),
        };
        let (launcher, slot, tasks) = (Arc::clone(launcher), Arc::clone(slot), self.tasks.clone());
        let (costs, digest) = (Arc::clone(&self.templates.costs), spec.image.digest.clone());
        let (counts, client) = (Arc::clone(&self.templates.counts), learned_from.clone());
        self.tasks.spawn(async move {
            let _held = (permit, set);
            let began = Instant::now();
            let mut cpu = None;
            let learn = |ready: &Ready<'_>| {
                cpu = Some(ready.cpu());
                lock(&costs).learn(&digest, ready);
            };
            let created = Self::make(&launcher, &name, plan, cgroup.as_ref()).await;
            // A template that is not ready yet does not keep a launcher.
            drop(launcher);
            let made = match created {
                Ok(created) => Template::new(created, cgroup, held, bounds, &tasks, learn).await,
                // Every template has another name, and the same cause is logged once.
                Err(error) => {
                    Err(TemplateError::NotMade(error.to_string().replace(&name, "template")))
                }
            };
            if let Some(client) = client {
                lock(&counts).charge(&client, cpu.unwrap_or_else(|| began.elapsed()));
            }
            slot.put(made);
        });
        Ok(())
    }
}
