//! Lets the sizes of pools follow their calls, while the server runs.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::receipt::FoundPool;
use super::sizing::{LeadTime, Seen, Size, Sizes};
use super::{Pool, Shared};
use crate::engine::WaitingMemory;
use crate::engine::preload::Preload;
use crate::lock::lock;

/// Interval between two updates while calls come.
const PAUSE: Duration = Duration::from_secs(1);

/// The same while none come: then sizes only shrink.
const CALM_PAUSE: Duration = Duration::from_secs(10);

/// Interval between two measurements of the waiting sandboxes' memory, which takes the engine a millisecond for each.
const MEMORY_PAUSE: Duration = Duration::from_secs(30);

/// Longest time for such a measurement.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of the last times that count.
const LAST: usize = 9;

/// Assumed memory of a waiting sandbox until it was measured, in bytes: without an interpreter, with one, and with one that
/// has imported modules.
const UNMEASURED: [u64; 3] = [8 << 20, 16 << 20, 64 << 20];

/// The last times, of which the median is typical. A single unusual one, such as the first, changes nothing.
#[derive(Debug, Default)]
pub(super) struct Times(VecDeque<Duration>);

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        if self.0.len() == LAST {
            self.0.pop_front();
        }
        self.0.push_back(time);
    }

    fn typical(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.0.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

/// The last times of replacing a sandbox.
#[derive(Debug, Default)]
pub(super) struct LeadTimes {
    pub(super) delay: Times,
    pub(super) making: Times,
}

impl LeadTimes {
    /// The typical time, if any sandbox was made.
    pub(super) fn typical(&self) -> Option<LeadTime> {
        let making = self.making.typical()?;
        Some(LeadTime { delay: self.delay.typical().unwrap_or_default(), making })
    }
}

/// Bytes for each waiting sandbox, before that was measured.
pub fn unmeasured_memory(preload: Option<&Preload>) -> u64 {
    let [nothing, interpreter, modules] = UNMEASURED;
    match preload {
        None => nothing,
        Some(preload) if preload.modules.is_empty() => interpreter,
        Some(_) => modules,
    }
}

/// The wanted size of each pool. A pool has the place of its name, even after another configuration.
pub(crate) struct Sizing {
    sizes: Sizes,
    pools: Vec<OfName>,
}

/// The pool that has a name now.
struct OfName {
    name: String,
    pool: Weak<Pool>,
}

impl Default for Sizing {
    fn default() -> Self {
        Self { sizes: Sizes::new(1, None, []), pools: Vec::new() }
    }
}

impl Sizing {
    /// The place of the pools of this name.
    pub(super) fn place(&mut self, name: &str) -> usize {
        let known = self.pools.iter().position(|of| of.name == name);
        known.unwrap_or_else(|| {
            self.pools.push(OfName { name: name.to_owned(), pool: Weak::new() });
            self.sizes.add(Size::Fixed(0))
        })
    }

    /// Lets the pools of a configuration have these sizes and follow their calls. `of_name` gives the size and the pool of a name.
    pub(super) fn adopt(
        &mut self,
        refills: usize,
        memory: Option<u64>,
        of_name: impl Fn(&str) -> (Size, Weak<Pool>),
    ) {
        self.sizes.set_refills(refills);
        self.sizes.bound(memory);
        for (place, of) in self.pools.iter_mut().enumerate() {
            let (size, pool) = of_name(&of.name);
            self.sizes.set(place, size);
            of.pool = pool;
        }
    }

    /// The calls of the pool at a place so far.
    pub(super) fn seen(&self, place: usize) -> Option<&Seen> {
        self.sizes.seen(place)
    }
}

/// Sets the sizes of the pools of a server until it stops.
pub(super) async fn follow_calls(shared: Weak<Shared>, stop: CancellationToken) {
    let follow = async {
        let mut last = Look::default();
        while let Some(shared) = shared.upgrade() {
            last.look(&shared).await;
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = shared.called.notified() => {}
                () = tokio::time::sleep(CALM_PAUSE) => {}
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

/// The state at the last update.
#[derive(Default)]
struct Look {
    /// The time of the last measurement of memory.
    measured: Option<Instant>,
    /// Whether fewer sandboxes wait than the minimum.
    is_tight: bool,
}

impl Look {
    async fn look(&mut self, shared: &Shared) {
        let (pools, is_bounded) = {
            let sizing = lock(&shared.sizing);
            let pools: Vec<_> = sizing.pools.iter().map(|of| of.pool.upgrade()).collect();
            (pools, sizing.sizes.is_bounded())
        };
        if is_bounded && self.measured.is_none_or(|last| last.elapsed() >= MEMORY_PAUSE) {
            self.measured = Some(Instant::now());
            for pool in pools.iter().flatten() {
                pool.measure().await;
            }
        }
        let each = |pool: &Option<Arc<Pool>>| pool.as_ref().map_or(0, |pool| pool.each());
        let each: Vec<_> = pools.iter().map(each).collect();
        // Names that have come meanwhile are left for the next time.
        let sizes = lock(&shared.sizing).sizes.at(shared.began.elapsed(), &each);
        let sizes =
            || pools.iter().zip(&sizes).filter_map(|(pool, size)| Some((pool.as_ref()?, *size)));
        for (pool, size) in sizes() {
            pool.follow(size, is_bounded);
        }
        let is_tight = sizes().any(|(pool, size)| size < lock(&pool.size).size.least());
        if is_tight && !self.is_tight {
            tracing::warn!(
                "pool.memoryMB is too small for all sandboxes that should wait at least"
            );
        }
        self.is_tight = is_tight;
    }
}

impl Pool {
    /// Measures the memory of the waiting sandboxes, where the engine can.
    pub(super) async fn measure(&self) -> Option<WaitingMemory> {
        let looked = self.shared.engine.memory(self.idle.names());
        let memory = tokio::time::timeout(MEMORY_TIMEOUT, looked).await.ok().flatten()?;
        if let Some(each) = memory.each() {
            self.each.store(each, Ordering::Relaxed);
        }
        Some(memory)
    }

    /// Memory of each sandbox that waits, measured or assumed, in bytes.
    fn each(&self) -> u64 {
        match self.each.load(Ordering::Relaxed) {
            0 => unmeasured_memory(self.template.preload()),
            each => each,
        }
    }

    /// Makes or removes sandboxes, so that `size` wait at rest.
    fn follow(&self, size: usize, is_bounded: bool) {
        // The configured size may have changed a moment ago. Only a bound of memory overrides it.
        let configured = lock(&self.size).size;
        let least = if is_bounded { 0 } else { configured.least() };
        let size = size.clamp(least, configured.most());
        let before = self.idle.size();
        if before != size {
            let image = self.template.image();
            tracing::debug!(%image, before, size, "the size of a pool changes");
            self.set_wanted(size);
        }
    }

    /// Notes that a call takes a sandbox, for the pool's size. Returns the pool's state.
    pub(super) fn note_call(&self) -> FoundPool {
        let lead = lock(&self.lead).typical();
        let at = self.shared.began.elapsed();
        let depth =
            lock(&self.shared.sizing).sizes.arrive(self.place, at, lead.unwrap_or_default());
        self.shared.called.notify_one();
        let each = self.each.load(Ordering::Relaxed);
        FoundPool { at, depth, lead, sandbox_bytes: (each > 0).then_some(each) }
    }

    /// Notes that it was served, for advice about the size.
    pub(super) fn note_served(&self, found: FoundPool) {
        lock(&self.shared.sizing).sizes.served(self.place, found.at, found.depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_unusual_changes_nothing() {
        let mut times = Times::default();
        assert_eq!(times.typical(), None);
        times.add(Duration::from_secs(9));
        assert_eq!(times.typical(), Some(Duration::from_secs(9)));
        for ms in 0..20 {
            times.add(Duration::from_millis(100 + ms));
        }
        times.add(Duration::from_secs(9));
        assert_eq!(times.typical(), Some(Duration::from_millis(116)));
    }
}
