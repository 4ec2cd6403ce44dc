//! The templates of all launchers.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use isolator_runner::wire::Interpreter;
use tokio::time::Instant;

use super::cgroup::Cgroup;
use super::host::Host;
use super::launcher::Launcher;
use super::layout::IMAGES;
use super::protocol::{Kind, Layer, Part};
use super::template::{ForkError, Template};
use super::{EmbeddedEngine, root, spec};
use crate::engine::preload::{Fork, Preload};
use crate::engine::{Call, EngineError, SandboxName, SandboxSpec};
use crate::lock::lock;

/// The end of the instance name for the control groups of templates. Nobody leases them.
pub(super) const TEMPLATES: &str = "+template";

/// How long to wait after a template failed before the next try.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The templates, and the users that they run as.
#[derive(Default)]
pub(super) struct Templates {
    /// By image: one for all templates of it, and nobody else.
    users: Mutex<HashMap<String, u32>>,
    slots: Mutex<Vec<(Key, Arc<Slot>)>>,
}

/// What a template is made from.
#[derive(Clone)]
struct Key {
    launcher: Weak<Launcher>,
    spec: SandboxSpec,
    preload: Preload,
    with_modules: bool,
    user: u32,
}

impl Key {
    fn is_like(&self, other: &Self) -> bool {
        self.launcher.ptr_eq(&other.launcher)
            && self.spec.image.digest == other.spec.image.digest
            && self.spec.workdir == other.spec.workdir
            && self.preload == other.preload
            && self.with_modules == other.with_modules
    }
}

/// The place of a template. Whoever holds the lock makes it or forks it.
#[derive(Default)]
struct Slot {
    state: tokio::sync::Mutex<State>,
    is_ready: AtomicBool,
}

#[derive(Default)]
enum State {
    #[default]
    Missing,
    Ready(Template),
    Failed(Instant),
}

impl Slot {
    fn set(&self, state: &mut State, new: State) {
        self.is_ready.store(matches!(new, State::Ready(_)), Ordering::Relaxed);
        *state = new;
    }
}

impl Templates {
    /// The user who may enter a new sandbox, if templates are made for it.
    pub(super) fn user(&self, host: &Host, spec: &SandboxSpec) -> Option<u32> {
        let preload = spec.preload.as_ref()?;
        if preload.interpreter != Interpreter::Python || !host.has_users_for_templates() {
            return None;
        }
        let mut users = lock(&self.users);
        if let Some(user) = users.get(&spec.image.digest) {
            return Some(*user);
        }
        let user = host.next_ids()?.first;
        users.insert(spec.image.digest.clone(), user);
        Some(user)
    }

    fn slot(&self, key: Key) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        slots.retain(|(key, _)| key.launcher.strong_count() > 0);
        if let Some((_, slot)) = slots.iter().find(|(found, _)| found.is_like(&key)) {
            return Arc::clone(slot);
        }
        let slot = Arc::<Slot>::default();
        slots.push((key, Arc::clone(&slot)));
        slot
    }

    /// Ends them all.
    pub(super) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

impl EmbeddedEngine {
    /// The instance name for the control groups of templates.
    pub(super) fn templates_instance(&self) -> String {
        format!("{}{TEMPLATES}", self.instance)
    }

    pub(super) async fn fork_template(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        fork: Fork,
    ) -> Result<bool, EngineError> {
        let host = self.host()?;
        let (Some(preload), Some(user)) = (&spec.preload, self.templates.user(host, spec)) else {
            return Ok(false);
        };
        let (launcher, process, cgroup) = self.with_live(Call::Preload, name, |live| {
            Ok((live.launcher(), Arc::clone(&live.process), live.cgroup.clone()))
        })?;
        let Some(launcher) = launcher else { return Ok(false) };
        let doors = cgroup.as_ref().map(Cgroup::doors).transpose();
        let doors = doors.map_err(|error| super::refused(Call::Preload, error))?;
        let key = Key {
            launcher: Arc::downgrade(&launcher),
            spec: spec.clone(),
            preload: preload.clone(),
            with_modules: fork.with_modules,
            user,
        };
        let slot = self.templates.slot(key.clone());
        if fork.is_awaited && !slot.is_ready.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut state = slot.state.lock().await;
        let is_needed = match &*state {
            State::Missing => true,
            State::Ready(template) => template.is_old() && !fork.is_awaited,
            State::Failed(when) => when.elapsed() > RETRY_AFTER,
        };
        if is_needed {
            let new = match self.start_template(&launcher, &key).await {
                Ok(template) => State::Ready(template),
                Err(error) => {
                    let image = &spec.image.name;
                    tracing::warn!(%image, %error, "a template could not be made");
                    State::Failed(Instant::now())
                }
            };
            slot.set(&mut state, new);
        }
        let State::Ready(template) = &mut *state else { return Ok(false) };
        match template.fork(spec.user, process.as_fd(), &doors.unwrap_or_default()).await {
            Ok(()) => Ok(true),
            Err(error) => {
                let image = &spec.image.name;
                tracing::warn!(%image, %error, "a template could not be forked");
                let was_good = template.age() > RETRY_AFTER;
                let next = if was_good { State::Missing } else { State::Failed(Instant::now()) };
                slot.set(&mut state, next);
                match error {
                    ForkError::NotForked(_) => Ok(false),
                    ForkError::Lost(message) => Err(super::refused(Call::Preload, message)),
                }
            }
        }
    }

    async fn start_template(&self, launcher: &Launcher, key: &Key) -> Result<Template, String> {
        let host = self.host.as_ref().map_err(Clone::clone)?;
        let Key { spec, preload, with_modules, user, .. } = key;
        let held = self.hold(&spec.image).map_err(|error| error.to_string())?;
        let name = format!("isolator-template-{}", uuid::Uuid::new_v4().simple());
        let instance = self.templates_instance();
        let cgroup = host.groups.as_ref().map(|groups| Cgroup::new(groups, &instance, &name));
        let parts = spec::Parts {
            root: &root::path_of(&name),
            host,
            cgroup: cgroup.as_ref(),
            env: &held.image().description.env,
            ids: None,
            is_entered: false,
        };
        let oci = spec::template(spec, preload, *with_modules, *user, &parts);
        let layer = Layer { size: spec.limits.tmp.as_bytes(), inodes: spec.limits.inodes };
        let kind = Kind::Image {
            image: Path::new(IMAGES).join(held.image().relative_root()),
            layer: Some(layer),
            part: Part::Template { program: spec::programs(preload, parts.env) },
        };
        if let Some(groups) = &host.groups {
            groups.make_instance(&instance).map_err(|error| error.to_string())?;
        }
        let freezer = cgroup.as_ref().and_then(Cgroup::separate_freezer);
        let created = launcher.create(&name, oci, kind, freezer).await?;
        let most = if *with_modules { preload.memory.as_bytes() } else { u64::MAX };
        Template::new(created, cgroup, most, &self.tasks).await
    }
}
