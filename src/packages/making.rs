//! The task that builds a set: it looks for the set in the store, and otherwise resolves and installs it.

use std::sync::Arc;

use isolator_pool::engine::Progress;
use isolator_pool::quote::escaped;

use crate::config::Language;
use crate::packages::asked::{Plan, plan_of_set};
use crate::packages::build::{BuildError, index_of};
use crate::packages::jobs::{Begun, BuildStep, KnownSet, Ready};
use crate::packages::line;
use crate::packages::lock::pins::{LockedPart, pins};
use crate::packages::lock::{Lock, Locked};
use crate::packages::refusal::Refusal;
use crate::packages::room;
use crate::packages::shared::Shared;
use crate::packages::store::StoredSet;
use crate::requirement::Recipe;

/// Longest line of progress.
const LONGEST_LINE: usize = 300;

/// Starts the task of a build.
pub(super) fn begin(shared: &Arc<Shared>, language: &Arc<Language>, plan: Plan, begun: Begun) {
    let (shared, language) = (Arc::clone(shared), Arc::clone(language));
    let common = Arc::clone(&shared.common);
    common.has_changed();
    common.tasks.spawn(async move {
        let made = tokio::select! {
            biased;
            () = shared.stop.cancelled() => Err(Refusal::Stopping),
            made = make(&shared, &language, &plan, &begun) => made,
        };
        let problem = made.as_ref().err().filter(|it| it.is_remembered()).map(ToString::to_string);
        let is_news = shared.jobs.end(&plan.key, made, &begun.step);
        match problem {
            Some(error) if is_news => tracing::warn!(error, "a set of packages was not built"),
            Some(error) => tracing::debug!(error, "a set of packages was not built again"),
            None => {}
        }
        shared.has_changed();
    });
}

/// Builds a set unless it is there, and reports the steps.
async fn make(
    shared: &Shared,
    language: &Language,
    plan: &Plan,
    begun: &Begun,
) -> Result<Arc<Ready>, Refusal> {
    let image = shared.backend.image(&language.name);
    let say = |line: &str| {
        let line: String = escaped(line.trim()).chars().take(LONGEST_LINE).collect();
        if !line.is_empty() {
            begun.step.send_replace(BuildStep::Doing(line));
        }
    };
    let set = find_or_build(shared, language, plan, begun, &say).await?;
    // The image may be known only since the first sandbox of the language.
    let image = image.or_else(|| shared.backend.image(&language.name));
    Ok(Arc::new(Ready { set, image }))
}

/// Looks whether a set of the configuration is in the store, unless something is known of it. Errors are left to its build.
pub(super) async fn look(shared: &Shared, name: &str) {
    let Ok((language, plan)) = plan_of_set(&shared.config, name) else { return };
    if !matches!(shared.jobs.known(&plan.key), KnownSet::Nothing) {
        return;
    }
    let image = shared.backend.image(&language.name);
    let found = find(shared, &language, &plan).await;
    let Ok(FoundSet { set: Some(set), .. }) = found else { return };
    let image = image.or_else(|| shared.backend.image(&language.name));
    if shared.jobs.found(&plan.key, Arc::new(Ready { set, image })) {
        shared.has_changed();
    }
}

/// The set of a plan, if it is there. Nothing is built, and errors are left to its build.
pub(super) async fn known_or_found(
    shared: &Shared,
    language: &Language,
    plan: &Plan,
) -> Option<StoredSet> {
    match shared.jobs.known(&plan.key) {
        KnownSet::Ready(ready) => Some(ready.set.clone()),
        _ => find(shared, language, plan).await.ok()?.set,
    }
}

/// A set, as far as it was found.
struct FoundSet {
    /// The set, if it is built.
    set: Option<StoredSet>,
    /// The lock that the operator keeps for it, if there is one.
    kept: Option<Lock>,
    /// The requirements, with the pins of the locks of its parts.
    recipe: Recipe,
}

async fn find(shared: &Shared, language: &Language, plan: &Plan) -> Result<FoundSet, Refusal> {
    let mut recipe = plan.recipe.clone();
    let target = shared.backend.target(language).await.map_err(|error| failed(plan, error))?.name;
    let mut kept = kept_locks(shared, plan, &target).await?;
    if plan.key.set.is_some()
        && let Some(LockedPart { lock, .. }) = kept.pop()
    {
        let set = with_hash(shared, lock.hash.clone()).await?;
        return Ok(FoundSet { set, kept: Some(lock), recipe });
    }
    recipe.pins = pins(recipe.interpreter, &kept).map_err(|error| failed(plan, error))?;
    let keeps = &plan.key.keeps;
    for (name, version) in keeps {
        recipe.pins.versions.entry(name.clone()).or_insert_with(|| version.clone());
    }
    let is_kept = |it: &Locked| keeps.get(&it.name).is_none_or(|version| *version == it.version);
    let all = shared.blocking(|backend| backend.all()).await?;
    // Another index may have other packages under these names. The versions of then don't matter: those that no lock has
    // may change when the set is built again.
    let index = index_of(&shared.config, recipe.interpreter);
    let fits = |set: &StoredSet| {
        set.interpreter == recipe.interpreter
            && set.index == index
            && set.target == target
            && set.requirements == plan.key.requirements
            && set.locks == recipe.pins.locks
            && set.packages.iter().all(is_kept)
    };
    let fitting = all.into_iter().map(|(set, _)| set).filter(fits);
    let set = fitting.max_by_key(|set| set.built);
    Ok(FoundSet { set, kept: None, recipe })
}

/// The locks that the operator keeps for the sets that this one is made from.
async fn kept_locks(
    shared: &Shared,
    plan: &Plan,
    target: &str,
) -> Result<Vec<LockedPart>, Refusal> {
    let mut kept = Vec::new();
    for (name, recipe) in &plan.parts {
        let (set, own) = (name.clone(), recipe.clone());
        let read = shared.blocking(move |backend| backend.kept_lock(&set, &own)).await?;
        let Some(lock) = read.map_err(|error| failed(plan, error))? else { continue };
        let lock = fitting(lock, target, plan, name)?;
        kept.push(LockedPart { name: name.clone(), recipe: recipe.clone(), lock });
    }
    Ok(kept)
}

async fn find_or_build(
    shared: &Shared,
    language: &Language,
    plan: &Plan,
    begun: &Begun,
    say: Progress<'_>,
) -> Result<StoredSet, Refusal> {
    let FoundSet { set, kept, recipe } = find(shared, language, plan).await?;
    if let Some(set) = set {
        return Ok(set);
    }
    say("waiting for its turn");
    let _turn = line::turn(&shared.line, plan, begun.clients.clone()).await?;
    let built = build(shared, language, plan, (kept, recipe), say).await;
    let count = if built.is_ok() { &shared.built } else { &shared.failed };
    count.add(1);
    built
}

async fn build(
    shared: &Shared,
    language: &Language,
    plan: &Plan,
    (kept, recipe): (Option<Lock>, Recipe),
    say: Progress<'_>,
) -> Result<StoredSet, Refusal> {
    let backend = &shared.backend;
    let lock = match kept {
        Some(lock) => lock,
        None => {
            say("resolving");
            backend.lock(language, &recipe, say).await.map_err(|error| failed(plan, error))?
        }
    };
    if let Some(found) = with_hash(shared, lock.hash.clone()).await? {
        return Ok(found);
    }
    if !plan.is_named {
        room::make_place(shared).await?;
    }
    let built = backend.build(language, &recipe, &lock, say).await;
    let set = built.map_err(|error| failed(plan, error))?;
    room::keep_to_size(shared, plan, &set).await?;
    Ok(set)
}

fn failed(plan: &Plan, error: impl Into<BuildError>) -> Refusal {
    Refusal::Failed { what: plan.key.called(), why: Arc::new(error.into()) }
}

/// A lock that the operator keeps, if it was made for this target. Packages for another one could not be imported.
fn fitting(lock: Lock, target: &str, plan: &Plan, set: &str) -> Result<Lock, Refusal> {
    if lock.target == target {
        return Ok(lock);
    }
    let (set, target) = (set.to_owned(), target.to_owned());
    Err(failed(plan, BuildError::OtherTarget { set, lock: lock.target, target }))
}

async fn with_hash(shared: &Shared, hash: String) -> Result<Option<StoredSet>, Refusal> {
    shared.blocking(move |backend| backend.find(&hash)).await
}
