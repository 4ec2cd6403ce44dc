//! The slots of templates: the key of each, its state, and the choice of one to replace.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::imports::TemplateModules;
use super::template::{SharedTemplate, Template, TemplateError};
use crate::engine::SandboxSpec;
use crate::engine::embedded::launcher_client::LauncherClient;
use crate::engine::embedded::live::BoundSet;
use crate::lock::lock;

/// How long to wait after a template failed before the next try. It doubles with each failure, up to the second.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(30);
const LATEST_RETRY: Duration = Duration::from_secs(10 * 60);

/// Maximum number of templates for the imports of programs, of each image and launcher, and how long one must have been unused
/// to be replaced.
const MOST_LEARNED: usize = 4;
const LEAST_USE: Duration = Duration::from_secs(60);

/// Maximum number of failed ones that are remembered.
const MOST_FAILED: usize = 32;

/// The key of a template: all that it is made from.
#[derive(Clone)]
pub(super) struct TemplateKey {
    pub(super) launcher: Weak<LauncherClient>,
    pub(super) spec: Arc<SandboxSpec>,
    /// Where the files of its image are.
    pub(super) root: PathBuf,
    /// The set of packages that it has, if any. Between two requests the set is not in use: the template is kept until the set
    /// is withdrawn, and serves any set with the same hash.
    pub(super) packages: Option<BoundSet>,
    pub(super) modules: Vec<String>,
    /// The client whose programs have imported just these; `None` if the configuration names them.
    pub(super) learned_from: Option<Arc<str>>,
    /// Whether it has the kernel of sessions as well.
    pub(super) for_sessions: bool,
    pub(super) user: u32,
}

impl TemplateKey {
    /// Whether both are for the same sandboxes with the same packages.
    pub(super) fn is_sibling_of(&self, other: &Self) -> bool {
        let set = |key: &Self| key.packages.as_ref().map(|bound| bound.hash.clone());
        self.shares_room(other) && set(self) == set(other)
    }

    /// Whether both are for the same sandboxes, whatever packages these have.
    fn shares_room(&self, other: &Self) -> bool {
        self.launcher.ptr_eq(&other.launcher) && self.is_for(&other.spec)
    }

    /// Whether it is for such sandboxes.
    pub(super) fn is_for(&self, spec: &SandboxSpec) -> bool {
        self.spec.image.digest == spec.image.digest
            && self.spec.workdir == spec.workdir
            && self.spec.preload == spec.preload
    }

    /// The same with a description of its own, so that keeping it does not show that such sandboxes are made.
    pub(super) fn kept(&self) -> Self {
        Self { spec: Arc::new(SandboxSpec::clone(&self.spec)), ..self.clone() }
    }

    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.is_sibling_of(other)
            && self.modules == other.modules
            && self.is_learned() == other.is_learned()
            && self.for_sessions == other.for_sessions
    }

    pub(super) fn is_learned(&self) -> bool {
        self.learned_from.is_some()
    }

    /// Whether it can't be made or forked anymore.
    pub(super) fn is_gone(&self) -> bool {
        self.launcher.strong_count() == 0
    }

    /// The content that decides which names are modules: the image and the set.
    pub(super) fn content(&self) -> String {
        let digest = &self.spec.image.digest;
        match &self.packages {
            Some(set) => format!("{digest} {}", set.hash),
            None => digest.clone(),
        }
    }

    /// Of the one without packages.
    pub(super) fn without_packages(&self) -> Self {
        Self { packages: None, ..self.clone() }
    }

    /// Of the one for sessions, or of the one that this is a copy of.
    pub(super) fn for_sessions(&self, for_sessions: bool) -> Self {
        Self { for_sessions, ..self.without_packages() }
    }

    /// Of the one that is made for a set of modules.
    pub(super) fn learned(&self, modules: &[String], client: &str) -> Self {
        Self { modules: modules.to_vec(), learned_from: Some(client.into()), ..self.clone() }
    }
}

/// The slot of a template.
pub(super) struct Slot {
    pub(super) state: Mutex<SlotState>,
    /// Wakes the requests that wait for the first one.
    pub(super) made: watch::Sender<()>,
}

pub(super) struct SlotState {
    pub(super) running: Option<SharedTemplate>,
    /// When it was made.
    born: Instant,
    /// The modules of the last one.
    pub(super) known: Arc<TemplateModules>,
    pub(super) used: Option<Instant>,
    pub(super) is_being_made: bool,
    /// The one that it is a copy of.
    source: Option<Weak<tokio::sync::Mutex<Template>>>,
    pub(super) failed: Option<Failure>,
    /// How long to wait after the next failure.
    retry_after: Duration,
}

/// Why there is no template.
pub(super) struct Failure {
    why: String,
    retry_at: Instant,
}

/// The state of a slot, for a request.
pub(super) enum Availability {
    Running(SharedTemplate),
    BeingMade,
    Failed(String),
}

impl Slot {
    pub(super) fn new() -> Self {
        let state = SlotState {
            running: None,
            born: Instant::now(),
            known: Arc::default(),
            used: None,
            is_being_made: false,
            source: None,
            failed: None,
            retry_after: RETRY_AFTER,
        };
        Self { state: Mutex::new(state), made: watch::Sender::new(()) }
    }

    pub(super) fn look(&self) -> Availability {
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        match (&state.running, &state.failed) {
            (Some(running), _) => Availability::Running(Arc::clone(running)),
            (None, Some(failure)) => Availability::Failed(failure.why.clone()),
            (None, None) => Availability::BeingMade,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        lock(&self.state).running.is_some()
    }

    /// Whether the caller must now have a new one made, and put it here.
    pub(super) fn begins(&self) -> bool {
        let mut state = lock(&self.state);
        let is_waiting = state.failed.as_ref().is_some_and(|it| Instant::now() < it.retry_at);
        let begins = !state.is_being_made && !is_waiting;
        state.is_being_made |= begins;
        begins
    }

    /// The one that runs.
    pub(super) fn running(&self) -> Option<SharedTemplate> {
        lock(&self.state).running.clone()
    }

    /// Whether the one that runs is a copy of another one than this.
    pub(super) fn is_copy_of_another(&self, source: Option<&SharedTemplate>) -> bool {
        let state = lock(&self.state);
        let of = state.running.as_ref().and(state.source.as_ref());
        of.is_some_and(|of| source.is_some_and(|source| of.as_ptr() != Arc::as_ptr(source)))
    }

    /// No new one is made after all.
    pub(super) fn give_back(&self) {
        lock(&self.state).is_being_made = false;
    }

    /// Takes the new one, with what is known of it. The last one ends with the requests that use it.
    pub(super) fn put(&self, made: Result<(Template, TemplateModules), TemplateError>) {
        let mut state = lock(&self.state);
        state.is_being_made = false;
        match made {
            Ok((template, known)) => {
                state.known = Arc::new(known);
                state.source = template.source().map(Arc::downgrade);
                state.running = Some(Arc::new(tokio::sync::Mutex::new(template)));
                state.born = Instant::now();
                state.failed = None;
            }
            Err(error) => {
                // The requests that would have forked it report it.
                tracing::debug!(%error, "a template could not be made");
                state.fail(error.to_string());
            }
        }
        drop(state);
        self.made.send_replace(());
    }

    /// Gives up one that could not be forked.
    pub(super) fn give_up(&self, template: &SharedTemplate, why: &str) {
        let mut state = lock(&self.state);
        if state.running.as_ref().is_some_and(|running| Arc::ptr_eq(running, template)) {
            state.give_up(why);
        }
    }

    /// Gives up the one that runs, whose forks don't get ready.
    pub(super) fn give_up_running(&self, why: &str) {
        lock(&self.state).give_up(why);
    }
}

impl SlotState {
    /// When it was used last, or began to be made; never if it failed.
    pub(super) fn last_use(&self) -> Option<Instant> {
        self.used.filter(|_| self.running.is_some() || self.is_being_made)
    }

    /// One that was good for a while is made again at once.
    fn give_up(&mut self, why: &str) {
        if self.running.take().is_none() {
            return;
        }
        if self.born.elapsed() > RETRY_AFTER {
            self.retry_after = RETRY_AFTER;
        } else {
            self.fail(why.to_owned());
        }
    }

    fn fail(&mut self, why: String) {
        self.failed = Some(Failure { why, retry_at: Instant::now() + self.retry_after });
        self.retry_after = LATEST_RETRY.min(self.retry_after * 2);
    }
}

/// Makes room for a template that programs of a client have asked for. `None` if all that are there were used a moment ago:
/// they are as good. A client with fewer than others has a place all the same. What failed takes no room, but is remembered, so
/// that it is not tried all the time.
pub(super) fn make_room(
    slots: &mut Vec<(TemplateKey, Arc<Slot>)>,
    key: &TemplateKey,
) -> Option<()> {
    let siblings =
        slots.iter().enumerate().filter(|(_, (it, _))| it.is_learned() && it.shares_room(key));
    let (there, failed): (Vec<_>, Vec<_>) = siblings
        .map(|(at, (it, slot))| (at, it.learned_from.as_ref(), lock(&slot.state).last_use()))
        .partition(|(.., used)| used.is_some());
    let has = |client| there.iter().filter(|(_, of, _)| *of == client).count();
    let fair = has(key.learned_from.as_ref()) + 1;
    let gone = if there.len() >= MOST_LEARNED {
        let is_unused = |used: &Option<Instant>| used.is_some_and(|it| it.elapsed() >= LEAST_USE);
        let may_go = there.iter().filter(|(_, of, used)| is_unused(used) || has(*of) > fair);
        Some(may_go.min_by_key(|(.., used)| *used)?.0)
    } else {
        failed.first().filter(|_| failed.len() >= MOST_FAILED).map(|(at, ..)| *at)
    };
    gone.map(|at| slots.remove(at));
    Some(())
}
