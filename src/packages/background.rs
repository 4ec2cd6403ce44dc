//! The background tasks of `serve`. One builds the sets of the configuration, one after the other, and again after their
//! image was updated or the index could not be reached. The other forgets sets that another process has removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::time::Instant;

use crate::packages::asked::plan_of_set;
use crate::packages::jobs::{Joined, KnownSet};
use crate::packages::making;
use crate::packages::shared::Shared;

/// The interval at which the server looks for missing and for removed sets.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The time that a set waits for the image of its language. After that, its own sandbox asks for the image.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds what is missing until the server stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let began = Instant::now();
    let mut looked = HashSet::new();
    loop {
        // Clients should see which sets are there before the first build, which may take minutes.
        for (name, set) in &shared.config.packages.sets {
            let is_up = shared.backend.image(&set.language).is_some();
            if !is_up || !looked.insert(name.clone()) {
                continue;
            }
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = making::look(&shared, name) => {}
            }
        }
        for name in shared.config.packages.sets.keys() {
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = build_if_missing(&shared, name, began) => {}
            }
        }
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Looks until the server stops whether sets were removed. Builds, which may take minutes, don't hold it up.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = forget_removed(&shared) => {}
        }
    }
}

/// Forgets sets that are not in the store anymore, and takes them from the engine.
async fn forget_removed(shared: &Shared) {
    let mut known: HashSet<String> = shared.jobs.ready().into_iter().collect();
    known.extend(lock(&shared.provided).iter().cloned());
    let left = lock(&shared.left).clone();
    known.extend(left.iter().cloned());
    let gone = shared.blocking(move |backend| -> Vec<String> {
        known.into_iter().filter(|hash| !backend.is_there(hash)).collect()
    });
    let Ok(gone) = gone.await else { return };
    for hash in gone {
        let gate = shared.gate(&hash);
        // A request that takes it now finds out itself, and programs that have it need it on the engine.
        let Ok(_leaving) = gate.try_write() else { continue };
        let own = hash.clone();
        let is_back = shared.blocking(move |backend| backend.is_there(&own)).await.unwrap_or(true);
        if is_back || shared.is_held(&hash) {
            continue;
        }
        if left.contains(&hash) {
            shared.withdraw(&hash).await;
            continue;
        }
        tracing::info!(hash, "a set of packages was removed by another process");
        shared.withdraw(&hash).await;
        shared.jobs.removed(&hash);
        shared.has_changed();
    }
}

async fn build_if_missing(shared: &Arc<Shared>, name: &str, began: Instant) {
    // A set with a wrong requirement can't be in a valid configuration.
    let Ok((language, plan)) = plan_of_set(&shared.config, name) else { return };
    let image = shared.backend.image(&language.name);
    // The pools come first: hosts wait for their sandboxes.
    if image.is_none() && began.elapsed() < IMAGE_TIMEOUT {
        return;
    }
    let is_there = match shared.jobs.known(&plan.key) {
        KnownSet::Ready(ready) => ready.image.is_none() || ready.image == image,
        KnownSet::Failed(_) => shared.jobs.pause_left(&plan.key).is_some(),
        KnownSet::Nothing | KnownSet::Building(_) => false,
    };
    if is_there {
        return;
    }
    let mut waiting = match shared.jobs.join(&plan.key, &Client::Server, image.as_deref(), false) {
        // It is tried again in the next round.
        Err(_) | Ok(Joined::Ready(_)) => return,
        Ok(Joined::Waiting(waiting)) => waiting,
        Ok(Joined::Begun(waiting, begun)) => {
            making::begin(shared, &language, plan, begun);
            waiting
        }
    };
    // Its task logs the result.
    let _ = waiting.follow(None).await;
    debug_assert!(waiting.is_done() || shared.stop.is_cancelled());
}
