//! What `serve` does without being asked. It builds the sets of the configuration, one after the other, and again after their
//! image was updated or the index was away. And it lets go of sets that another process has removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::time::Instant;

use crate::packages::jobs::{Joined, Known, Step};
use crate::packages::{Shared, blocking, follow};

/// How often the server looks whether a set is missing.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a set waits for the image of its language, before its first sandbox has to ask for the image.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds what is missing until the server stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let began = Instant::now();
    let mut looked = HashSet::new();
    loop {
        // What is there is known before the first build, which may take minutes.
        for (name, set) in &shared.config.packages.sets {
            let is_up = shared.workshop.image(&set.language).is_some();
            if !is_up || !looked.insert(name.clone()) {
                continue;
            }
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = shared.look(name) => {}
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
            () = let_go(&shared) => {}
        }
    }
}

/// Forgets sets that are not in the store anymore, and takes from the engine what it has of them.
async fn let_go(shared: &Shared) {
    let mut known: HashSet<String> = shared.jobs.ready().into_iter().collect();
    known.extend(lock(&shared.provided).iter().cloned());
    let left: Vec<_> = lock(&shared.left).iter().cloned().collect();
    known.extend(left.iter().cloned());
    let workshop = Arc::clone(&shared.workshop);
    let gone = move || -> Vec<String> {
        known.into_iter().filter(|hash| !workshop.is_there(hash)).collect()
    };
    let Ok(gone) = blocking(gone).await else { return };
    for hash in gone {
        let gate = shared.gate(&hash);
        // Whoever takes it at this moment finds out by themselves, and programs that have it need what the engine has.
        let Ok(_leaving) = gate.try_write() else { continue };
        let (workshop, own) = (Arc::clone(&shared.workshop), hash.clone());
        let is_back = blocking(move || workshop.is_there(&own)).await.unwrap_or(true);
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
    let Ok((language, plan)) = shared.plan_of(name) else { return };
    let image = shared.workshop.image(&language.name);
    // The pools come first: their sandboxes are what hosts wait for.
    if image.is_none() && began.elapsed() < IMAGE_TIMEOUT {
        return;
    }
    let is_there = match shared.jobs.known(&plan.key) {
        Known::Ready(ready) => ready.image.is_none() || ready.image == image,
        Known::Failed(_) => shared.jobs.pause_left(&plan.key).is_some(),
        Known::Nothing | Known::Building(_) => false,
    };
    if is_there {
        return;
    }
    let mut waiting = match shared.jobs.join(&plan.key, &Client::Server, image.as_deref(), false) {
        // What is in the way is over at another time.
        Err(_) | Ok(Joined::Ready(_)) => return,
        Ok(Joined::Waiting(waiting)) => waiting,
        Ok(Joined::Begun(waiting, begun)) => {
            shared.begin(&language, plan, begun);
            waiting
        }
    };
    // Its task says what came of it.
    let _ = follow(&mut waiting, None).await;
    debug_assert!(matches!(&*waiting.step.borrow(), Step::Done(_)) || shared.stop.is_cancelled());
}
