//! How much the store may have: the sets that were used least go, but never one that is in use or that the configuration
//! names.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use isolator_pool::lock::lock;
use tokio::time::Instant;

use crate::packages::Shared;
use crate::packages::asked::{Plan, plan_of_set};
use crate::packages::blocking;
use crate::packages::jobs::Known;
use crate::packages::refusal::Refusal;
use crate::packages::store::{StoreError, StoredSet};

/// How long sets are waited for that may be in use only for another moment, and how often they are looked at.
const LEAVING: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes a place for another set that the configuration does not name.
///
/// # Errors
///
/// When all of them are in use.
pub(super) async fn make_place(shared: &Shared) -> Result<(), Refusal> {
    let Some(most) = shared.config.packages.on_demand().map(|it| it.max_sets) else {
        return Ok(());
    };
    let mut there = removable(shared).await?;
    while there.len() >= most {
        if !remove_first(shared, &mut there).await? {
            return Err(Refusal::AllInUse(most));
        }
    }
    Ok(())
}

/// Removes other sets until all together have no more bytes than they may. If that is not enough, the new one goes.
///
/// # Errors
///
/// When the new one went.
pub(super) async fn keep_to_size(
    shared: &Shared,
    plan: &Plan,
    new: &StoredSet,
) -> Result<(), Refusal> {
    let most = shared.config.packages.max_store.as_bytes();
    let what = || plan.key.called();
    if new.bytes > most {
        remove(shared, new).await?;
        return Err(Refusal::TooLarge { what: what(), bytes: new.bytes, most });
    }
    let mut there = removable(shared).await?;
    there.retain(|set| set.hash != new.hash);
    loop {
        let workshop = Arc::clone(&shared.workshop);
        let all = blocking(move || workshop.bytes()).await?;
        if all <= most {
            return Ok(());
        }
        if !remove_first(shared, &mut there).await? {
            remove(shared, new).await?;
            let others = all.saturating_sub(new.bytes);
            return Err(Refusal::NoRoom { what: what(), bytes: new.bytes, others, most });
        }
    }
}

/// The sets that may go, those that were used last at the end.
async fn removable(shared: &Shared) -> Result<Vec<StoredSet>, Refusal> {
    let workshop = Arc::clone(&shared.workshop);
    let mut all: Vec<(StoredSet, SystemTime)> = blocking(move || workshop.all()).await?;
    {
        let mut uses = lock(&shared.uses);
        for (set, used) in &mut all {
            *used = uses.get(&set.hash).map_or(*used, |own| (*used).max(*own));
        }
        uses.retain(|hash, _| all.iter().any(|(set, _)| set.hash == *hash));
    }
    all.sort_by_key(|(_, used)| *used);
    let named = named(shared);
    let is_named = |set: &StoredSet| named.iter().any(|it| it.is(set));
    Ok(all.into_iter().map(|(set, _)| set).filter(|set| !is_named(set)).collect())
}

/// What is known of a set of the configuration.
struct Named {
    hash: Option<String>,
    requirements: Vec<String>,
}

impl Named {
    /// Whether it is this one. As long as its hash is not known, each set with its requirements may be.
    fn is(&self, set: &StoredSet) -> bool {
        match &self.hash {
            Some(hash) => *hash == set.hash,
            None => self.requirements == set.requirements,
        }
    }
}

fn named(shared: &Shared) -> Vec<Named> {
    let config = &shared.config;
    let plans = config.packages.sets.values().filter_map(|set| {
        let language = config.languages.get(&set.language)?;
        plan_of_set(config, language, &set.name).ok()
    });
    let named = plans.map(|plan| Named {
        hash: match shared.jobs.known(&plan.key) {
            Known::Ready(ready) => Some(ready.set.hash.clone()),
            _ => None,
        },
        requirements: plan.key.requirements,
    });
    named.collect()
}

/// Removes the first set that is not in use, and returns whether there was one. A sandbox that was just used still has its set
/// for a moment, so this waits a little.
async fn remove_first(shared: &Shared, there: &mut Vec<StoredSet>) -> Result<bool, Refusal> {
    let deadline = Instant::now() + LEAVING;
    loop {
        for (place, set) in there.iter().enumerate() {
            if remove(shared, set).await? {
                let StoredSet { hash, bytes, .. } = there.remove(place);
                tracing::info!(hash, bytes, "a set of packages was removed to make room");
                return Ok(true);
            }
        }
        if there.is_empty() || Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Removes a set from the engine and the store, unless it is in use. Returns whether it is gone.
async fn remove(shared: &Shared, set: &StoredSet) -> Result<bool, Refusal> {
    let gate = shared.gate(&set.hash);
    // Whoever takes the set has the other kind of this lock.
    let Ok(_leaving) = gate.try_write() else { return Ok(false) };
    if shared.is_held(&set.hash) {
        return Ok(false);
    }
    shared.withdraw(&set.hash).await;
    let (workshop, hash) = (Arc::clone(&shared.workshop), set.hash.clone());
    let removed = blocking(move || workshop.remove(&hash)).await?;
    match removed {
        // If it was not there anymore, it is gone as well.
        Ok(_) => {}
        Err(StoreError::InUse(_)) => return Ok(false),
        Err(error) => {
            tracing::warn!(%error, hash = set.hash, "a set of packages can't be removed");
            if !matches!(error, StoreError::Left { .. }) {
                return Ok(false);
            }
        }
    }
    shared.jobs.removed(&set.hash);
    shared.has_changed();
    Ok(true)
}
