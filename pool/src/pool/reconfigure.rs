//! Another configuration while requests run: pools that did not change go on, others are started and take over.
//!
//! [`Pools`] are those of one configuration. A request holds those with which it has begun, so it ends with them. What
//! they all share, such as the queue, is one for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::pools::{PoolSpec, Pools, PoolsLimits};
use super::sizing::Size;
use super::{Pool, PoolSize};
use crate::engine::Unsupported;

/// Interval at which new pools are checked to be full.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Pools {
    /// The pools of another configuration, which share all else with these. Those whose sandboxes are to be the same are the
    /// same pools. The others are started, and fill along with these. Nothing else changes until [`take_over`](Self::take_over);
    /// if the result is dropped instead, what it has made is removed.
    ///
    /// # Errors
    ///
    /// When the engine can't make the sandboxes of a pool.
    pub fn reconfigured(
        &self,
        limits: PoolsLimits,
        specs: BTreeMap<String, PoolSpec>,
    ) -> Result<Self, Unsupported> {
        for spec in specs.values() {
            self.shared.engine.supports(&spec.sandbox)?;
        }
        let sizes = specs.iter().map(|(name, spec)| (name.clone(), spec.size)).collect();
        let mut counts = self.counts.clone();
        let pool = |(name, spec): (String, PoolSpec)| {
            let former = self.pools.get(&name);
            let pool = match former.filter(|pool| pool.makes(&spec.sandbox)) {
                Some(same) => Arc::clone(same),
                None => {
                    let former = former.map(|former| &**former);
                    let counts = Arc::clone(counts.entry(name.clone()).or_default());
                    Pool::start(Arc::clone(&self.shared), &name, spec, counts, former)
                }
            };
            (name, pool)
        };
        let pools = specs.into_iter().map(pool).collect();
        Ok(Self {
            shared: Arc::clone(&self.shared),
            admission: self.admission.clone(),
            pools,
            counts,
            sizes,
            limits,
            abort: self.abort.clone(),
        })
    }

    /// The names of pools that `former` does not have in this form.
    pub fn started_after(&self, former: &Self) -> Vec<&str> {
        let is_new = |(name, pool): &(&String, &Arc<Pool>)| !former.has(name, pool);
        self.pools.iter().filter(is_new).map(|(name, _)| name.as_str()).collect()
    }

    /// Waits until the pools are full, except those whose sandboxes can't be made at this moment. Returns whether the server
    /// goes on.
    pub async fn filled(&self) -> bool {
        let filled = async {
            while !self.pools.values().all(|pool| pool.is_settled()) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => false,
            () = filled => true,
        }
    }

    /// Takes the place of `former`, whose pools keep no sandbox that these don't have. A request that has begun with one of
    /// them gets a sandbox that is made for it.
    pub fn take_over(&self, former: &Self) {
        for (name, pool) in &self.pools {
            if let Some(size) = self.sizes.get(name) {
                pool.resize(*size);
            }
        }
        for (name, pool) in &former.pools {
            if !self.has(name, pool) {
                pool.retire();
            }
        }
        self.adopt_sizes();
        self.admission.set_limits(self.limits.admission);
        let (now, before) = (self.limits, former.limits);
        self.resize(&self.shared.refills, before.refills, now.refills);
        let (before, now) = (before.admission.running, now.admission.running);
        self.resize(&self.shared.cold_starts, before, now);
    }

    fn has(&self, name: &str, pool: &Arc<Pool>) -> bool {
        self.pools.get(name).is_some_and(|own| Arc::ptr_eq(own, pool))
    }

    /// Changes the number of slots. Surplus slots that are in use are removed when they are given back.
    fn resize(&self, slots: &Arc<Semaphore>, before: usize, now: usize) {
        slots.add_permits(now.saturating_sub(before));
        let less = before.saturating_sub(now);
        let Ok(left) = u32::try_from(less - slots.forget_permits(less)) else { return };
        if left > 0 {
            let (slots, stop) = (Arc::clone(slots), self.shared.stop.clone());
            self.shared.tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    // It is never closed.
                    taken = slots.acquire_many(left) => taken.into_iter().for_each(|it| it.forget()),
                }
            });
        }
    }
}

impl Pool {
    /// Keeps no sandbox from now on.
    fn retire(&self) {
        self.resize(PoolSize { size: Size::Fixed(0), hot: 0, max_age: Duration::ZERO });
    }
}
