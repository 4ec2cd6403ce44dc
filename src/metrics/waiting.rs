//! The memory of sandboxes that wait. Looking takes the engine about a millisecond for each, so it is done when somebody asks
//! for metrics, but rarely, and nobody waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolator_pool::engine::WaitingMemory;
use isolator_pool::lock::lock;
use isolator_pool::pool::pools::Pools;
use tokio_util::task::TaskTracker;

/// How old what is known can get while somebody asks.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The same while nothing was found, as before the pools are full. That costs nothing.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// How long a look can take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory by the name of the pool.
pub(super) type Memory = BTreeMap<String, WaitingMemory>;

/// Bytes of the templates, which all pools share.
pub(super) fn template_bytes(memory: &Memory) -> Option<u64> {
    memory.values().map(|memory| memory.templates).max()
}

/// What is known of it.
#[derive(Default)]
pub(super) struct Waiting {
    known: Mutex<Known>,
    /// The look that is going on, which ends by its deadline.
    tasks: TaskTracker,
}

#[derive(Default)]
struct Known {
    memory: Memory,
    /// When the last look began.
    looked: Option<Instant>,
}

impl Waiting {
    /// What is known; nothing before the end of the first look.
    pub(super) fn known(&self) -> Memory {
        lock(&self.known).memory.clone()
    }

    /// Begins to look again, if the last look was a while ago. Needs a Tokio runtime.
    pub(super) fn look(self: &Arc<Self>, pools: &Arc<Pools>) {
        {
            let mut known = lock(&self.known);
            let is_found = known.memory.values().any(|memory| memory.sandboxes > 0);
            let pause = if is_found { LOOK_AGAIN } else { LOOK_SOON };
            let is_new = known.looked.is_some_and(|looked| looked.elapsed() < pause);
            if is_new || !self.tasks.is_empty() {
                return;
            }
            known.looked = Some(Instant::now());
        }
        let waiting = Arc::downgrade(self);
        let pools = Arc::clone(pools);
        self.tasks.spawn(async move {
            let looked = tokio::time::timeout(LOOK_TIMEOUT, pools.memory()).await;
            let (Ok(found), Some(waiting)) = (looked, waiting.upgrade()) else {
                tracing::debug!("the memory of what waits could not be looked up in time");
                return;
            };
            let found = found.into_iter().map(|(name, memory)| (name.to_owned(), memory));
            lock(&waiting.known).memory = found.collect();
        });
    }
}
