//! The memory of idle sandboxes. The engine needs about a millisecond for each, so it is measured when metrics are requested,
//! but rarely, and in the background.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolator_pool::engine::WaitingMemory;
use isolator_pool::lock::lock;
use isolator_pool::pool::pools::Pools;
use tokio_util::task::TaskTracker;

/// The age at which known memory is measured again, when metrics are requested.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The same while nothing was found, as before the pools are full. Then measuring is cheap.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// The limit for one measurement.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory by the name of the pool.
pub(super) type Memory = BTreeMap<String, WaitingMemory>;

/// Bytes of the templates, which all pools share.
pub(super) fn template_bytes(memory: &Memory) -> Option<u64> {
    memory.values().map(|memory| memory.templates).max()
}

/// The memory of idle sandboxes, as it was last measured.
#[derive(Default)]
pub(super) struct WaitingSandboxes {
    last: Mutex<Measured>,
    /// The running measurement, which ends by its deadline.
    tasks: TaskTracker,
}

#[derive(Default)]
struct Measured {
    memory: Memory,
    /// The beginning of the last measurement.
    looked: Option<Instant>,
}

impl WaitingSandboxes {
    /// The last known memory; empty before the end of the first measurement.
    pub(super) fn known(&self) -> Memory {
        lock(&self.last).memory.clone()
    }

    /// Starts a measurement, if the last one was a while ago. Needs a Tokio runtime.
    pub(super) fn look(self: &Arc<Self>, pools: &Arc<Pools>) {
        {
            let mut last = lock(&self.last);
            let is_found = last.memory.values().any(|memory| memory.sandboxes > 0);
            let pause = if is_found { LOOK_AGAIN } else { LOOK_SOON };
            let is_new = last.looked.is_some_and(|looked| looked.elapsed() < pause);
            if is_new || !self.tasks.is_empty() {
                return;
            }
            last.looked = Some(Instant::now());
        }
        let waiting = Arc::downgrade(self);
        let pools = Arc::clone(pools);
        self.tasks.spawn(async move {
            let looked = tokio::time::timeout(LOOK_TIMEOUT, pools.memory()).await;
            let (Ok(found), Some(waiting)) = (looked, waiting.upgrade()) else {
                tracing::debug!("the memory of idle sandboxes could not be measured in time");
                return;
            };
            let found = found.into_iter().map(|(name, memory)| (name.to_owned(), memory));
            lock(&waiting.last).memory = found.collect();
        });
    }
}
