//! The bounds of the store: the sets that were used least recently are removed, but never one that is in use or that the
//! configuration names.

use std::time::{Duration, SystemTime};

use isolator_pool::lock::lock;
use tokio::time::Instant;

use crate::packages::asked::{Plan, plan_of_set};
use crate::packages::jobs::KnownSet;
use crate::packages::refusal::Refusal;
use crate::packages::shared::Shared;
use crate::packages::store::{StoreError, StoredSet};

/// The time to wait for sets that may be in use only for another moment, and the interval of attempts.
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

/// Removes other sets until all together fit their limit. If that is not enough, the new one is removed.
///
/// # Errors
///
/// When the new one was removed.
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
        let all = shared.blocking(|backend| backend.bytes()).await?;
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

/// The sets that may be removed, the least recently used first.
async fn removable(shared: &Shared) -> Result<Vec<StoredSet>, Refusal> {
    let mut all: Vec<(StoredSet, SystemTime)> = shared.blocking(|backend| backend.all()).await?;
    {
        let mut uses = lock(&shared.uses);
        for (set, used) in &mut all {
            *used = uses.get(&set.hash).map_or(*used, |own| (*used).max(*own));
        }
        uses.retain(|hash, _| all.iter().any(|(set, _)| set.hash == *hash));
    }
    all.sort_unstable_by_key(|(_, used)| *used);
    let named = named(shared);
    let is_named = |set: &StoredSet| named.iter().any(|it| it.is(set));
    Ok(all.into_iter().map(|(set, _)| set).filter(|set| !is_named(set)).collect())
}

/// A set of the configuration.
struct Named {
    hash: Option<String>,
    requirements: Vec<String>,
}

impl Named {
    /// Whether it is this set. As long as its hash is not known, each set with its requirements may be.
    fn is(&self, set: &StoredSet) -> bool {
        match &self.hash {
            Some(hash) => *hash == set.hash,
            None => self.requirements == set.requirements,
        }
    }
}

fn named(shared: &Shared) -> Vec<Named> {
    let config = &shared.config;
    let plans = config.packages.sets.keys().filter_map(|name| plan_of_set(config, name).ok());
    let named = plans.map(|(_, plan)| Named {
        hash: match shared.jobs.known(&plan.key) {
            KnownSet::Ready(ready) => Some(ready.set.hash.clone()),
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
    // A request that takes the set has a read lock.
    let Ok(_leaving) = gate.try_write() else { return Ok(false) };
    if shared.is_held(&set.hash) {
        return Ok(false);
    }
    shared.withdraw(&set.hash).await;
    let hash = set.hash.clone();
    match shared.blocking(move |backend| backend.remove(&hash)).await? {
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
