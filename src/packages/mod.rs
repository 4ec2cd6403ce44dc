//! The sets of packages of a server: those that the configuration names, and those that requests ask for.
//!
//! A separate task looks for a set, and builds it if it is not there ([`jobs`], [`making`]). The request waits for
//! it, takes the set so that it is not removed meanwhile, and brings it to the engine ([`holding`]). [`room`] bounds the store, and
//! [`background`] builds the sets of the configuration before a request needs them.

mod asked;
mod backend;
mod background;
mod blocking;
pub(crate) mod build;
mod clients;
mod holding;
mod image;
pub(crate) mod installing;
mod jobs;
mod line;
pub(crate) mod lock;
mod making;
mod refusal;
mod room;
mod satisfies;
mod share;
mod shared;
pub(crate) mod store;
pub(crate) mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use isolator_pool::engine::Progress;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::{Config, Language};
use crate::packages::asked::{Plan, plan, plan_of_set, sets_for};
use crate::packages::backend::{Backend, LocalBackend};
use crate::packages::holding::Lost;
use crate::packages::jobs::{Joined, KnownSet, Ready};
use crate::packages::shared::{Common, Shared};
use crate::packages::store::{Store, StoredSet};
use crate::requirement::{self, Requirement};

pub(crate) use crate::packages::refusal::Refusal;
pub(crate) use crate::packages::shared::PackageCounts;

/// Attempts to build a set for one request, if it is removed before it could be taken.
const ATTEMPTS: usize = 3;

/// The sets of a server; cheap to clone. When the last clone is dropped, builds end.
#[derive(Clone)]
pub(crate) struct Packages {
    config: Arc<Config>,
    common: Arc<Common>,
    /// None if the configuration has no packages. Then nothing is made on disk, and every request is refused.
    shared: Option<Arc<Shared>>,
    _stop: Arc<DropGuard>,
}

/// A set of the configuration, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetSummary {
    pub name: String,
    /// The language whose programs can use it.
    pub language: String,
    /// The requirements of the operator.
    pub requirements: Vec<String>,
    /// Whether it can be used.
    pub state: SetState,
    /// The set, if it is there.
    pub set: Option<StoredSet>,
}

/// Whether a set can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetState {
    /// At once.
    Ready,
    /// It is being built; the step. A request for it waits.
    Building(String),
    /// It was not looked for yet. The first request for it does.
    Waiting,
    /// It could not be built; why. It is tried again.
    Failed(String),
}

/// The sets on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stored {
    pub sets: usize,
    pub bytes: u64,
}

impl Packages {
    /// The sets of a store, for the sandboxes of these pools, and for one client or for several.
    pub(crate) fn new(
        config: Arc<Config>,
        pools: Arc<Pools>,
        store: Store,
        has_one_client: bool,
    ) -> Self {
        let backend = LocalBackend::new(Arc::clone(&config), pools, store);
        Self::with(config, Some(Arc::new(backend)), has_one_client)
    }

    /// No sets, for a configuration that has none.
    pub(crate) fn unused(config: Arc<Config>, has_one_client: bool) -> Self {
        Self::with(config, None, has_one_client)
    }

    fn with(config: Arc<Config>, backend: Option<Arc<dyn Backend>>, has_one_client: bool) -> Self {
        let stop = CancellationToken::new();
        let common = Arc::new(Common::new(has_one_client, stop.clone()));
        Self::of(config, common, backend, Arc::new(stop.drop_guard()))
    }

    fn of(
        config: Arc<Config>,
        common: Arc<Common>,
        backend: Option<Arc<dyn Backend>>,
        stop: Arc<DropGuard>,
    ) -> Self {
        let shared = backend.map(|backend| {
            let (config, common) = (Arc::clone(&config), Arc::clone(&common));
            Arc::new(Shared { config, backend, replaced: CancellationToken::new(), common })
        });
        Self { config, common, shared, _stop: stop }
    }

    /// The sets of another configuration, without a store if it uses none. Builds go on, and requests keep the sets that they
    /// have.
    pub(crate) fn reconfigured(
        &self,
        config: Arc<Config>,
        pools: Arc<Pools>,
        store: Option<Store>,
    ) -> Self {
        let backend = store.map(|store| {
            Arc::new(LocalBackend::new(Arc::clone(&config), pools, store)) as Arc<dyn Backend>
        });
        Self::of(config, Arc::clone(&self.common), backend, Arc::clone(&self._stop))
    }

    /// Ends the background tasks: the sets of another configuration have taken the place of these.
    pub(crate) fn replaced(&self, by: &Self) {
        if let Some(shared) = &self.shared {
            shared.replaced.cancel();
        }
        let shared = by.shared.as_ref().map_or_else(Weak::new, Arc::downgrade);
        *lock(&self.common.newest) = Some((Arc::clone(&by.config), shared));
        self.common.has_changed();
    }

    /// The sets of the configuration that holds now.
    fn newest(&self) -> Self {
        match &*lock(&self.common.newest) {
            None => self.clone(),
            Some((config, shared)) => Self {
                config: Arc::clone(config),
                common: Arc::clone(&self.common),
                shared: shared.upgrade(),
                _stop: Arc::clone(&self._stop),
            },
        }
    }

    /// Builds the sets of the configuration that are missing, in the background, now and later. Forgets those that another
    /// process removes.
    pub(crate) fn build_missing(&self) {
        let Some(shared) = &self.shared else { return };
        let replaced = || shared.replaced.clone();
        let run = background::run(Arc::clone(shared));
        self.common.tasks.spawn(replaced().run_until_cancelled_owned(run));
        let watch = background::watch(Arc::clone(shared));
        self.common.tasks.spawn(replaced().run_until_cancelled_owned(watch));
    }

    /// Ends all builds, and waits until nothing of them is left.
    pub(crate) async fn close(&self) {
        self.common.stop.cancel();
        self.common.tasks.close();
        self.common.tasks.wait().await;
    }

    /// The set with everything that a request asks for. Builds it if it is not there, or waits for its build, and reports the
    /// steps. The set stays as long as the result does. Dropping the future leaves a build running.
    pub(crate) async fn get(
        &self,
        language: &Arc<Language>,
        asked: &[String],
        client: &Client,
        say: Option<Progress<'_>>,
    ) -> Result<Arc<PackageSet>, Refusal> {
        self.get_keeping(language, asked, BTreeMap::new(), client, say).await
    }

    /// The same, and these packages have these versions in it, if it has them at all.
    async fn get_keeping(
        &self,
        language: &Arc<Language>,
        asked: &[String],
        keeps: BTreeMap<String, String>,
        client: &Client,
        say: Option<Progress<'_>>,
    ) -> Result<Arc<PackageSet>, Refusal> {
        let plan = plan(&self.config, language, asked)?.keeping(keeps);
        let shared = self.shared(language)?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let ready = ready(shared, language, &plan, client, say, Again::Later).await?;
            match shared.take(language, &ready.set).await {
                Ok(set) => return Ok(set),
                Err(Lost::Gone) => tracing::info!(
                    hash = ready.set.hash,
                    "a set of packages is gone; building it again"
                ),
                Err(Lost::Refused(refusal)) => last = Some(refusal),
            }
            shared.jobs.lost(&plan.key, &ready);
        }
        Err(last.unwrap_or_else(|| Refusal::Vanishes(plan.key.called())))
    }

    /// The state for building; a refusal if the configuration has no packages.
    fn shared(&self, language: &Language) -> Result<&Arc<Shared>, Refusal> {
        self.shared.as_ref().ok_or_else(|| Refusal::NoPackages(language.name.clone()))
    }

    /// Builds a set of the configuration if it is not there, also if that failed a moment ago.
    pub(crate) async fn build(&self, name: &str, say: Progress<'_>) -> Result<StoredSet, Refusal> {
        let (language, plan) = plan_of_set(&self.config, name)?;
        let shared = self.shared(&language)?;
        let again = Again::Now;
        let ready = ready(shared, &language, &plan, &Client::Server, Some(say), again).await?;
        Ok(ready.set.clone())
    }

    /// Finds the sets of a language that are there, and builds none.
    pub(crate) async fn look(&self, language: &str) {
        let Some(shared) = &self.shared else { return };
        for set in self.config.packages.sets.values() {
            if set.language == language {
                making::look(shared, &set.name).await;
            }
        }
    }

    /// Whether a request can ask for this. Nothing is built.
    pub(crate) fn check(&self, language: &Language, asked: &[String]) -> Result<(), Refusal> {
        plan(&self.config, language, asked).map(|_| ())
    }

    /// The sets of the configuration.
    pub(crate) fn listed(&self) -> Vec<SetSummary> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let listed = self.config.packages.sets.values().map(|config| {
            let (state, set) = match plan_of_set(&self.config, &config.name) {
                Err(refusal) => (SetState::Failed(refusal.to_string()), None),
                Ok((_, plan)) => match shared.jobs.known(&plan.key) {
                    KnownSet::Nothing => (SetState::Waiting, None),
                    KnownSet::Building(step) => (SetState::Building(step), None),
                    KnownSet::Ready(ready) => (SetState::Ready, Some(ready.set.clone())),
                    KnownSet::Failed(refusal) => (SetState::Failed(refusal.to_string()), None),
                },
            };
            SetSummary {
                name: config.name.clone(),
                language: config.language.clone(),
                requirements: config.requirements.clone(),
                state,
                set,
            }
        });
        listed.collect()
    }

    /// The sets of a language that have a module, as programs name it.
    pub(crate) fn sets_with(&self, language: &str, module: &str) -> Vec<String> {
        let listed = self.listed().into_iter().filter(|set| set.language == language);
        let has = |set: &SetSummary| {
            set.set.as_ref().is_some_and(|set| satisfies::has_module(set, module))
        };
        listed.filter(has).map(|set| set.name).collect()
    }

    /// The set of a language that satisfies all these requirements, and has the fewest packages.
    pub(crate) fn satisfying(&self, language: &str, wanted: &[Requirement]) -> Option<String> {
        let listed = self.listed().into_iter().filter(|set| set.language == language);
        let fitting = listed.filter_map(|listed| {
            let set = listed.set?;
            let fits = wanted.iter().all(|requirement| satisfies::satisfies(&set, requirement));
            fits.then_some((set.packages.len(), listed.name))
        });
        fitting.min().map(|(_, name)| name)
    }

    /// A set that a program has.
    async fn stored_set(&self, hash: &str) -> Option<StoredSet> {
        let (shared, hash) = (self.shared.as_ref()?, hash.to_owned());
        shared.blocking(move |backend| backend.find(&hash)).await.ok().flatten()
    }

    /// Whether a set that a program has satisfies all these requirements.
    pub(crate) async fn has_all(&self, hash: &str, wanted: &[Requirement]) -> bool {
        let set = self.stored_set(hash).await;
        set.is_some_and(|set| wanted.iter().all(|wanted| satisfies::satisfies(&set, wanted)))
    }

    /// A set that is not there yet and should have all these packages, by the requirements of the operator.
    pub(crate) fn promising(&self, language: &Language, wanted: &[Requirement]) -> Option<String> {
        let interpreter = language.kernel?;
        let has_all = |set: &SetSummary| {
            let own = set.requirements.iter();
            let own = own.filter_map(|text| requirement::parse(interpreter, text).ok());
            let own: Vec<String> = own.map(|requirement| requirement.name).collect();
            wanted.iter().all(|requirement| own.contains(&requirement.name))
        };
        let coming =
            |set: &SetSummary| matches!(set.state, SetState::Building(_) | SetState::Waiting);
        let listed = self.listed().into_iter().filter(|set| set.language == language.name);
        listed.filter(coming).find(has_all).map(|set| set.name)
    }

    /// The names of the sets for a language.
    pub(crate) fn names(&self, language: &str) -> Vec<String> {
        sets_for(&self.config, language)
    }

    /// A number that changes whenever a set of the configuration comes, fails or goes.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.common.changes.subscribe()
    }

    /// Counts for operators.
    pub(crate) fn counts(&self) -> PackageCounts {
        let listed = self.listed();
        let held = lock(&self.common.held);
        PackageCounts {
            named: listed.len(),
            ready: listed.iter().filter(|set| set.state == SetState::Ready).count(),
            building: self.common.jobs.building(),
            in_use: held.values().filter(|set| set.strong_count() > 0).count(),
            built: self.common.built.get(),
            failed: self.common.failed.get(),
            installs: self.common.installs.get(),
            refused_installs: self.common.refused_installs.get(),
        }
    }

    /// The sets on disk, also those that the configuration does not name. `None` if they can't be read.
    pub(crate) async fn stored(&self) -> Option<Stored> {
        let Some(shared) = &self.shared else { return Some(Stored::default()) };
        let stored =
            shared.blocking(|backend| Stored { sets: backend.all().len(), bytes: backend.bytes() });
        stored.await.ok()
    }
}

/// Waits until a set is there.
async fn ready(
    shared: &Arc<Shared>,
    language: &Arc<Language>,
    plan: &Plan,
    client: &Client,
    say: Option<Progress<'_>>,
    again: Again,
) -> Result<Arc<Ready>, Refusal> {
    let image = shared.backend.image(&language.name);
    let mut waiting =
        match shared.jobs.join(&plan.key, client, image.as_deref(), again == Again::Now)? {
            Joined::Ready(ready) => return Ok(ready),
            Joined::Waiting(waiting) => waiting,
            Joined::Begun(waiting, begun) => {
                making::begin(shared, language, plan.clone(), begun);
                waiting
            }
        };
    waiting.follow(say).await
}

/// When a build that failed a moment ago is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// At once.
    Now,
    /// When the failure is forgotten.
    Later,
}
