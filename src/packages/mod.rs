//! The sets of packages of a server: those that the configuration names, and those that requests bring about.
//!
//! A set is looked for, and built if it is not there, in a task of its own ([`jobs`], [`making`]). Whoever asks waits for
//! it, takes the set so that nobody removes it meanwhile, and brings it to the engine. How much the store may have is in
//! [`room`], and what `serve` builds without being asked in [`background`].

mod asked;
mod background;
pub(crate) mod build;
mod common;
mod holding;
mod image;
mod jobs;
mod line;
pub(crate) mod lock;
mod making;
mod nowhere;
mod refusal;
mod room;
mod satisfies;
pub(crate) mod store;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod workshop;

use std::collections::HashSet;
use std::sync::Arc;

use isolator_pool::engine::Progress as Say;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::{Config, Language};
use crate::packages::asked::{Plan, plan, plan_of_set, sets_for};
use crate::packages::common::Common;
use crate::packages::holding::Lost;
use crate::packages::jobs::{Begun, Joined, Known, Ready, Step, Waiting};
use crate::packages::nowhere::Nowhere;
use crate::packages::requirement::Requirement;
use crate::packages::store::{Store, StoredSet};
use crate::packages::workshop::{Shop, Workshop};

pub(crate) use crate::packages::asked::Asked;
pub(crate) use crate::packages::common::PackageCounts;
pub(crate) use crate::packages::image::{MOST_TOLD, shown};
pub(crate) use crate::packages::refusal::Refusal;
pub(crate) use crate::requirement;

/// How often a set is built anew for one request if it is gone before it could be taken.
const ATTEMPTS: usize = 3;

/// The sets of a server; cheap to clone. When the last clone is dropped, builds end.
#[derive(Clone)]
pub(crate) struct Packages {
    shared: Arc<Shared>,
    _stop: Arc<DropGuard>,
}

/// What the tasks of builds have, too.
struct Shared {
    config: Arc<Config>,
    workshop: Arc<dyn Workshop>,
    /// Cancelled when another configuration has taken the place of this one.
    replaced: CancellationToken,
    /// What all configurations of a server share.
    common: Arc<Common>,
}

impl std::ops::Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// A set of the configuration, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its name.
    pub name: String,
    /// The language whose programs can use it.
    pub language: String,
    /// What the operator wants to be in it.
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
    /// It is being built; what is being done. A request for it waits.
    Building(String),
    /// Nobody has looked for it yet. A request for it does.
    Waiting,
    /// It could not be built; why. It is tried again.
    Failed(String),
}

/// What is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Stored {
    /// Sets.
    pub sets: usize,
    /// Their bytes.
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
        let shop = Shop::new(Arc::clone(&config), pools, store);
        Self::on(config, Arc::new(shop), has_one_client)
    }

    /// No sets, for a configuration that has none: nothing is made on disk, and whoever asks is told.
    pub(crate) fn unused(config: Arc<Config>, has_one_client: bool) -> Self {
        Self::on(config, Arc::new(Nowhere), has_one_client)
    }

    fn on(config: Arc<Config>, workshop: Arc<dyn Workshop>, has_one_client: bool) -> Self {
        let stop = CancellationToken::new();
        let common = Arc::new(Common::new(has_one_client, stop.clone()));
        let replaced = CancellationToken::new();
        let shared = Arc::new(Shared { config, workshop, replaced, common });
        Self { shared, _stop: Arc::new(stop.drop_guard()) }
    }

    /// The sets of another configuration, without a store if it uses none. What is being built goes on, and what requests
    /// have stays.
    pub(crate) fn reconfigured(
        &self,
        config: Arc<Config>,
        pools: Arc<Pools>,
        store: Option<Store>,
    ) -> Self {
        let workshop: Arc<dyn Workshop> = match store {
            Some(store) => Arc::new(Shop::new(Arc::clone(&config), pools, store)),
            None => Arc::new(Nowhere),
        };
        let (replaced, common) = (CancellationToken::new(), Arc::clone(&self.shared.common));
        let shared = Arc::new(Shared { config, workshop, replaced, common });
        Self { shared, _stop: Arc::clone(&self._stop) }
    }

    /// Builds nothing anymore without being asked: another configuration has taken the place of this one.
    pub(crate) fn replaced(&self) {
        self.shared.replaced.cancel();
        self.shared.has_changed();
    }

    /// Builds the sets of the configuration that are not there, in the background, and again whenever one is missing. Lets go of
    /// those that another process removes.
    pub(crate) fn build_missing(&self) {
        let shared = || Arc::clone(&self.shared);
        let replaced = || self.shared.replaced.clone();
        let tasks = &self.shared.tasks;
        tasks.spawn(replaced().run_until_cancelled_owned(background::run(shared())));
        tasks.spawn(replaced().run_until_cancelled_owned(background::watch(shared())));
    }

    /// Ends all builds, and waits until nothing of them is left.
    pub(crate) async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// The set with everything that a request asks for. Builds it if it is not there, or waits for whoever does, and tells
    /// what is being done meanwhile. It stays as long as the result does. Dropping the future leaves a build running.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub(crate) async fn get(
        &self,
        language: &Arc<Language>,
        asked: &Asked,
        client: &Client,
        say: Option<Say<'_>>,
    ) -> Result<Arc<PackageSet>, Refusal> {
        let plan = plan(&self.shared.config, language, asked)?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let ready = self.ready(language, &plan, client, say, Again::Later).await?;
            match self.shared.take(language, &ready.set).await {
                Ok(set) => return Ok(set),
                Err(Lost::Gone) => tracing::info!(
                    hash = ready.set.hash,
                    "a set of packages is gone; building it again"
                ),
                Err(Lost::Refused(refusal)) => last = Some(refusal),
            }
            self.shared.jobs.lost(&plan.key, &ready);
        }
        Err(last.unwrap_or_else(|| Refusal::Unusable {
            what: plan.key.called(),
            why: "something removes it as soon as it is built".to_owned(),
        }))
    }

    /// Builds a set of the configuration if it is not there. A failure of a moment ago does not count.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub(crate) async fn build(&self, name: &str, say: Say<'_>) -> Result<StoredSet, Refusal> {
        let (language, plan) = self.shared.plan_of(name)?;
        let ready = self.ready(&language, &plan, &Client::Server, Some(say), Again::Now).await?;
        Ok(ready.set.clone())
    }

    /// Looks which sets of a language are there, and builds none.
    pub(crate) async fn look(&self, language: &str) {
        for set in self.shared.config.packages.sets.values() {
            if set.language == language {
                self.shared.look(&set.name).await;
            }
        }
    }

    /// Whether a request can ask for this. Nothing is built.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub(crate) fn check(&self, language: &Language, asked: &Asked) -> Result<(), Refusal> {
        plan(&self.shared.config, language, asked).map(|_| ())
    }

    /// The sets of the configuration.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        let sets = self.shared.config.packages.sets.values();
        let listed = sets.map(|config| {
            let (state, set) = match self.shared.plan_of(&config.name) {
                Err(refusal) => (SetState::Failed(refusal.to_string()), None),
                Ok((_, plan)) => match self.shared.jobs.known(&plan.key) {
                    Known::Nothing => (SetState::Waiting, None),
                    Known::Building(step) => (SetState::Building(step), None),
                    Known::Ready(ready) => (SetState::Ready, Some(ready.set.clone())),
                    Known::Failed(refusal) => (SetState::Failed(refusal.to_string()), None),
                },
            };
            Listed {
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
        let has =
            |set: &Listed| set.set.as_ref().is_some_and(|set| satisfies::has_module(set, module));
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

    /// Whether a set that a program has satisfies all these requirements.
    pub(crate) async fn has_all(&self, hash: &str, wanted: &[Requirement]) -> bool {
        let (workshop, hash) = (Arc::clone(&self.shared.workshop), hash.to_owned());
        let set = blocking(move || workshop.find(&hash)).await.ok().flatten();
        set.is_some_and(|set| wanted.iter().all(|wanted| satisfies::satisfies(&set, wanted)))
    }

    /// A set that is not there yet and should have all these packages, going by what the operator wants in it.
    pub(crate) fn promising(&self, language: &Language, wanted: &[Requirement]) -> Option<String> {
        let interpreter = language.kernel?;
        let has_all = |set: &Listed| {
            let own = set
                .requirements
                .iter()
                .filter_map(|text| requirement::parse(interpreter, text).ok());
            let own: HashSet<String> = own.map(|requirement| requirement.name).collect();
            wanted.iter().all(|requirement| own.contains(&requirement.name))
        };
        let coming = |set: &Listed| matches!(set.state, SetState::Building(_) | SetState::Waiting);
        let listed = self.listed().into_iter().filter(|set| set.language == language.name);
        listed.filter(coming).find(has_all).map(|set| set.name)
    }

    /// The names of the sets for a language.
    pub(crate) fn names(&self, language: &str) -> Vec<String> {
        sets_for(&self.shared.config, language)
    }

    /// A number that changes whenever a set of the configuration comes, fails or goes.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Counts for operators.
    pub(crate) fn counts(&self) -> PackageCounts {
        let listed = self.listed();
        let held = lock(&self.shared.held);
        PackageCounts {
            named: listed.len(),
            ready: listed.iter().filter(|set| set.state == SetState::Ready).count(),
            building: self.shared.jobs.building(),
            in_use: held.values().filter(|set| set.strong_count() > 0).count(),
            built: self.shared.built.get(),
            failed: self.shared.failed.get(),
        }
    }

    /// What is on disk, also sets that the configuration does not name. `None` if it can't be read.
    pub(crate) async fn stored(&self) -> Option<Stored> {
        let workshop = Arc::clone(&self.shared.workshop);
        let stored =
            blocking(move || Stored { sets: workshop.all().len(), bytes: workshop.bytes() });
        stored.await.ok()
    }

    /// Waits until a set is there.
    async fn ready(
        &self,
        language: &Arc<Language>,
        plan: &Plan,
        client: &Client,
        say: Option<Say<'_>>,
        again: Again,
    ) -> Result<Arc<Ready>, Refusal> {
        let shared = &self.shared;
        let image = shared.workshop.image(&language.name);
        let mut waiting =
            match shared.jobs.join(&plan.key, client, image.as_deref(), again == Again::Now)? {
                Joined::Ready(ready) => return Ok(ready),
                Joined::Waiting(waiting) => waiting,
                Joined::Begun(waiting, begun) => {
                    shared.begin(language, plan.clone(), begun);
                    waiting
                }
            };
        follow(&mut waiting, say).await
    }
}

/// When a build that failed a moment ago is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// At once.
    Now,
    /// When the failure is forgotten.
    Later,
}

impl Shared {
    /// The plan of a set of the configuration, and its language.
    fn plan_of(&self, name: &str) -> Result<(Arc<Language>, Plan), Refusal> {
        let set = self.config.packages.sets.get(name);
        let language = set.and_then(|set| self.config.languages.get(&set.language));
        let Some(language) = language else {
            return Err(Refusal::NoSuchSet {
                asked: name.to_owned(),
                language: "any language".to_owned(),
                sets: self.config.packages.sets.keys().cloned().collect(),
            });
        };
        Ok((Arc::clone(language), plan_of_set(&self.config, language, name)?))
    }

    /// Looks whether a set of the configuration is there, unless something is known of it.
    async fn look(&self, name: &str) {
        let Ok((language, plan)) = self.plan_of(name) else { return };
        if !matches!(self.jobs.known(&plan.key), Known::Nothing) {
            return;
        }
        if let Some(ready) = making::look(self, &language, &plan).await
            && self.jobs.found(&plan.key, ready)
        {
            self.has_changed();
        }
    }

    /// Starts the task of a build.
    fn begin(self: &Arc<Self>, language: &Arc<Language>, plan: Plan, begun: Begun) {
        let (shared, language) = (Arc::clone(self), Arc::clone(language));
        self.has_changed();
        self.tasks.spawn(async move {
            let made = tokio::select! {
                biased;
                () = shared.stop.cancelled() => Err(Refusal::Stopping),
                made = making::make(&shared, &language, &plan, &begun) => made,
            };
            let problem =
                made.as_ref().err().filter(|it| it.is_remembered()).map(ToString::to_string);
            let is_news = shared.jobs.end(&plan.key, made, &begun.step);
            match problem {
                Some(error) if is_news => tracing::warn!(error, "a set of packages was not built"),
                Some(error) => tracing::debug!(error, "a set of packages was not built again"),
                None => {}
            }
            shared.has_changed();
        });
    }

    fn has_changed(&self) {
        self.changes.send_modify(|number| *number += 1);
    }
}

/// Waits for the end of a build, and tells its steps.
async fn follow(waiting: &mut Waiting, say: Option<Say<'_>>) -> Result<Arc<Ready>, Refusal> {
    loop {
        let step = waiting.step.borrow_and_update().clone();
        match (step, say) {
            (Step::Done(made), _) => return made,
            (Step::Doing(line), Some(say)) if !line.is_empty() => say(&line),
            (Step::Doing(_), _) => {}
        }
        if waiting.step.changed().await.is_err() {
            return Err(Refusal::Stopping);
        }
    }
}

/// Runs what reads files on a thread that may wait.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    // It fails only if the work panicked, or when the process ends.
    tokio::task::spawn_blocking(work).await.map_err(|_| Refusal::Stopping)
}

/// A hash, shortened so that it still differs from others.
pub(crate) fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
