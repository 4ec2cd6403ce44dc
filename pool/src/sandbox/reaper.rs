//! The reaper: removes sandboxes whose lease was dropped.
//!
//! A sandbox is held through a [`Lease`], which exists before the engine is asked to make the
//! sandbox. Dropping the lease never blocks: it hands the name over, and removal happens in the
//! background, with retries, a few at a time, when the answer of the request that had the sandbox has
//! left. Leases are bounded by the pools and by admission, and sandboxes that are not removed yet by
//! [`MAX_BACKLOG`]: until the engine gets rid of some, none is made.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::counts::Count;
use crate::engine::{Call, Engine, SandboxName, bounded};
use crate::lock::lock;
use crate::packages::PackageSet;
use crate::sandbox::activity::ActivityGate;

/// Number of removals at the same time. More would only wait for each other inside the engine.
const PARALLEL_REMOVALS: usize = 4;

/// First and longest pause before a failed removal is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));

/// Number of sandboxes that may wait to be removed before no new ones are made. A burst leaves some dozens;
/// more of them mean that the engine does not get rid of any.
const MAX_BACKLOG: usize = 64;

/// Sets of packages that a sandbox can have, with the one that it begins with. None of them can be removed as long as it is there, so one
/// sandbox must not have all that a server has room for.
pub(crate) const MAX_SETS: usize = 8;

/// The ownership of a sandbox. Dropping it has the reaper remove the sandbox.
#[derive(Debug)]
pub(crate) struct Lease {
    name: SandboxName,
    packages: Mutex<Vec<Arc<PackageSet>>>,
    reaper: Reaper,
}

impl Lease {
    pub(crate) fn name(&self) -> &SandboxName {
        &self.name
    }

    /// Keeps a set of packages until the sandbox is removed. Returns false if it has as many as it can have.
    pub(crate) fn keep(&self, set: Arc<PackageSet>) -> bool {
        let mut packages = lock(&self.packages);
        if packages.iter().any(|kept| Arc::ptr_eq(kept, &set)) {
            return true;
        }
        let has_room = packages.len() < MAX_SETS;
        if has_room {
            packages.push(set);
        }
        has_room
    }

    /// Whether it can keep another set.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.packages).len() < MAX_SETS
    }
}

/// A sandbox whose lease was dropped, with the sets of packages that it was given.
struct Leaving {
    name: SandboxName,
    packages: Vec<Arc<PackageSet>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.reaper.known.change(|_, leaving| *leaving += 1);
        // The reaper outlives every lease until the process ends; then the next instance sweeps.
        let packages = std::mem::take(&mut *lock(&self.packages));
        let _ = self.reaper.queue.send(Leaving { name: self.name.clone(), packages });
    }
}

/// Issues leases, and removes the sandboxes whose lease was dropped.
#[derive(Debug, Clone)]
pub(crate) struct Reaper {
    queue: mpsc::UnboundedSender<Leaving>,
    known: Arc<Known>,
    hurry: CancellationToken,
}

/// Names that are leased or still being removed.
#[derive(Debug)]
struct Known {
    names: Mutex<HashSet<SandboxName>>,
    counts: watch::Sender<Counts>,
    removed: Count,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    known: usize,
    /// Those of them whose lease was dropped.
    leaving: usize,
}

impl Known {
    fn change(&self, change: impl FnOnce(&mut HashSet<SandboxName>, &mut usize)) {
        let mut names = lock(&self.names);
        self.counts.send_modify(|counts| {
            change(&mut names, &mut counts.leaving);
            counts.known = names.len();
        });
    }

    async fn wait_for(&self, condition: impl FnMut(&Counts) -> bool) {
        // The sender is in `self`, so the wait ends only with the condition.
        let _ = self.counts.subscribe().wait_for(condition).await;
    }
}

impl Reaper {
    pub(crate) fn start(
        engine: Arc<dyn Engine>,
        activity: Arc<ActivityGate>,
        tasks: &TaskTracker,
    ) -> Self {
        let (queue, left) = mpsc::unbounded_channel();
        let (names, counts) = (Mutex::default(), watch::Sender::default());
        let known = Arc::new(Known { names, counts, removed: Count::new() });
        let hurry = CancellationToken::new();
        let reaping =
            reap(engine, activity, left, Arc::clone(&known), hurry.clone(), tasks.clone());
        tasks.spawn(reaping);
        Self { queue, known, hurry }
    }

    /// Leases a name. Must happen before the engine is asked to make the sandbox.
    pub(crate) fn lease(&self, name: SandboxName) -> Lease {
        self.known.change(|names, _| {
            names.insert(name.clone());
        });
        Lease { name, packages: Mutex::default(), reaper: self.clone() }
    }

    /// Takes over a sandbox without a lease.
    pub(crate) fn adopt(&self, name: SandboxName) {
        drop(self.lease(name));
    }

    /// Whether the name is leased or about to be removed.
    pub(crate) fn knows(&self, name: &SandboxName) -> bool {
        lock(&self.known.names).contains(name)
    }

    /// Waits until nothing is leased and everything was removed.
    pub(crate) async fn idle(&self) {
        self.known.wait_for(|counts| counts.known == 0).await;
    }

    /// Retries failed removals at once, and with the shortest pause again: the server is shutting down.
    pub(crate) fn hurry(&self) {
        self.hurry.cancel();
    }

    /// Waits until few enough sandboxes wait to be removed that another may be made.
    pub(crate) async fn has_room(&self) {
        self.known.wait_for(|counts| counts.leaving < MAX_BACKLOG).await;
    }

    /// Number of sandboxes that wait to be removed.
    pub(crate) fn leaving(&self) -> usize {
        self.known.counts.borrow().leaving
    }

    /// Number of sandboxes that were removed since the start.
    pub(crate) fn removed(&self) -> u64 {
        self.known.removed.get()
    }
}

async fn reap(
    engine: Arc<dyn Engine>,
    activity: Arc<ActivityGate>,
    mut left: mpsc::UnboundedReceiver<Leaving>,
    known: Arc<Known>,
    hurry: CancellationToken,
    tasks: TaskTracker,
) {
    let slots = Arc::new(Semaphore::new(PARALLEL_REMOVALS));
    while let Some(Leaving { name, packages }) = left.recv().await {
        let engine = Arc::clone(&engine);
        let activity = Arc::clone(&activity);
        let known = Arc::clone(&known);
        let slots = Arc::clone(&slots);
        let hurry = hurry.clone();
        tasks.spawn(async move {
            // The answer of the request that had it is still being sent.
            activity.settled().await;
            // The semaphore is never closed. The slot is given back while waiting: one sandbox that
            // can't be removed must not hold up the others.
            let mut slot = slots.acquire_owned().await.ok();
            let mut pause = RETRY.0;
            let mut is_hurried = false;
            while let Err(error) = bounded(Call::Remove, engine.remove(&name)).await {
                tracing::warn!(sandbox = %name, %error, "a sandbox could not be removed, trying again");
                slot.take();
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
                    () = hurry.cancelled(), if !is_hurried => {
                        is_hurried = true;
                        pause = RETRY.0;
                    }
                }
            }
            drop((slot, packages));
            known.removed.add(1);
            known.change(|names, leaving| {
                names.remove(&name);
                *leaving -= 1;
            });
        });
    }
}
