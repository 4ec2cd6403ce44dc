//! What the task of a build does: it looks for the set in the store, and otherwise resolves and installs it.

use std::sync::Arc;

use isolator_pool::engine::Progress as Say;
use isolator_pool::quote::escaped;

use crate::config::Language;
use crate::packages::Shared;
use crate::packages::asked::Plan;
use crate::packages::blocking;
use crate::packages::build::{BuildError, index_of};
use crate::packages::jobs::{Begun, Ready, Step};
use crate::packages::line;
use crate::packages::lock::Lock;
use crate::packages::lock::pins::{LockedPart, pins};
use crate::packages::refusal::Refusal;
use crate::packages::requirement::Recipe;
use crate::packages::room;
use crate::packages::store::StoredSet;

/// Longest line of progress.
const LONGEST_LINE: usize = 300;

/// Builds a set unless it is there. Runs in a task of its own, and tells its steps to whoever waits.
pub(super) async fn make(
    shared: &Shared,
    language: &Language,
    plan: &Plan,
    begun: &Begun,
) -> Result<Arc<Ready>, Refusal> {
    let image = shared.workshop.image(&language.name);
    let say = |line: &str| {
        let line: String = escaped(line.trim()).chars().take(LONGEST_LINE).collect();
        if !line.is_empty() {
            begun.step.send_replace(Step::Doing(line));
        }
    };
    let set = find_or_build(shared, language, plan, begun, &say).await?;
    // The first sandbox of a language tells which image it is.
    let image = image.or_else(|| shared.workshop.image(&language.name));
    Ok(Arc::new(Ready { set, image }))
}

/// Finds a set without building it, with the time that reading the store takes. What stands in the way is told by the build.
pub(super) async fn look(shared: &Shared, language: &Language, plan: &Plan) -> Option<Arc<Ready>> {
    let image = shared.workshop.image(&language.name);
    let found = find(shared, language, plan).await;
    let Ok(Found { set: Some(set), .. }) = found else { return None };
    let image = image.or_else(|| shared.workshop.image(&language.name));
    Some(Arc::new(Ready { set, image }))
}

/// What is there of a set.
struct Found {
    /// The set, if it is built.
    set: Option<StoredSet>,
    /// The lock that the operator keeps for it, if there is one.
    kept: Option<Lock>,
    /// What is asked for, with what the locks of its parts settle.
    recipe: Recipe,
}

async fn find(shared: &Shared, language: &Language, plan: &Plan) -> Result<Found, Refusal> {
    let workshop = &shared.workshop;
    let mut recipe = plan.recipe.clone();
    let target = workshop.target(language).await.map_err(|error| failed(plan, &error))?;
    let mut kept = kept_locks(shared, plan, &target).await?;
    if plan.key.set.is_some()
        && let Some(LockedPart { lock, .. }) = kept.pop()
    {
        let set = with_hash(shared, lock.hash.clone()).await?;
        return Ok(Found { set, kept: Some(lock), recipe });
    }
    recipe.pins = pins(recipe.interpreter, &kept)
        .map_err(|error| failed(plan, &BuildError::Lock(error.to_string())))?;
    let all = Arc::clone(workshop);
    let all = blocking(move || all.all()).await?;
    // Another index may have other packages under these names. Whatever it was resolved to then: what is locked nowhere
    // changes when it is built anew.
    let index = index_of(&shared.config, recipe.interpreter);
    let fits = |set: &StoredSet| {
        set.interpreter == recipe.interpreter
            && set.index == index
            && set.target == target
            && set.requirements == plan.key.requirements
            && set.locks == recipe.pins.locks
    };
    let fitting = all.into_iter().map(|(set, _)| set).filter(fits);
    let set = fitting.max_by_key(|set| set.built);
    Ok(Found { set, kept: None, recipe })
}

/// The locks that the operator keeps for the sets that this one is made from.
async fn kept_locks(
    shared: &Shared,
    plan: &Plan,
    target: &str,
) -> Result<Vec<LockedPart>, Refusal> {
    let mut kept = Vec::new();
    for (name, recipe) in &plan.parts {
        let (workshop, set, own) = (Arc::clone(&shared.workshop), name.clone(), recipe.clone());
        let read = blocking(move || workshop.kept_lock(&set, &own)).await?;
        let Some(lock) = read.map_err(|error| failed(plan, &error))? else { continue };
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
    say: Say<'_>,
) -> Result<StoredSet, Refusal> {
    let Found { set, kept, recipe } = find(shared, language, plan).await?;
    if let Some(set) = set {
        return Ok(set);
    }
    say("waiting for its turn");
    let _turn = line::turn(&shared.line, plan, begun.askers.clone()).await?;
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
    say: Say<'_>,
) -> Result<StoredSet, Refusal> {
    let workshop = &shared.workshop;
    let lock = match kept {
        Some(lock) => lock,
        None => {
            say("resolving");
            workshop.lock(language, &recipe, say).await.map_err(|error| failed(plan, &error))?
        }
    };
    if let Some(found) = with_hash(shared, lock.hash.clone()).await? {
        return Ok(found);
    }
    if !plan.is_named {
        room::make_place(shared).await?;
    }
    let set = workshop
        .build(language, &recipe, &lock, say)
        .await
        .map_err(|error| failed(plan, &error))?;
    room::keep_to_size(shared, plan, &set).await?;
    tracing::info!(
        set = plan.key.called(),
        hash = set.hash,
        packages = set.packages.len(),
        bytes = set.bytes,
        "a set of packages was built"
    );
    Ok(set)
}

fn failed(plan: &Plan, error: &BuildError) -> Refusal {
    Refusal::Failed {
        what: plan.key.called(),
        why: error.to_string(),
        is_lasting: error.is_of_requirements(),
    }
}

/// A lock that the operator keeps, if it was made for this target. What is installed otherwise could not be imported.
fn fitting(lock: Lock, target: &str, plan: &Plan, set: &str) -> Result<Lock, Refusal> {
    if lock.target == target {
        return Ok(lock);
    }
    let why = format!(
        "the lock of the set {set} was made for {}, and the image has {target} now; `isolator packages lock {set}` renews it",
        lock.target
    );
    Err(Refusal::Failed { what: plan.key.called(), why, is_lasting: false })
}

async fn with_hash(shared: &Shared, hash: String) -> Result<Option<StoredSet>, Refusal> {
    let workshop = Arc::clone(&shared.workshop);
    blocking(move || workshop.find(&hash)).await
}
