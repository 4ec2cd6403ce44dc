//! How many sandboxes should wait in each pool: the rule alone, without a clock, an engine or a pool.
//!
//! Each call takes a sandbox, and another one is made in its place. The *depth* of a call is how many sandboxes of its pool are
//! being made at the moment it comes. A pool of size `s` has one ready for each call with a depth below `s`. So the depths of the
//! last calls say what share of them would have found one ready with any size, bursts and all: the size is the quantile of
//! the depths at the chosen share, which is the newsvendor's answer for things that keep.
//!
//! Times are since any moment that stays the same, so that a server, a log and a simulation can use it alike.

use std::collections::VecDeque;
use std::time::Duration;

use super::minutes::Minutes;

/// The largest size that follows demand. Depths from here on count as one.
pub const MOST: usize = 256;

/// After this time, a call counts half.
const HALF_LIFE: Duration = Duration::from_secs(10 * 60);

/// How long the calls must have asked for less before a pool gets one sandbox less.
const SHRINK_AFTER: Duration = Duration::from_secs(60);

/// How many sandboxes of a pool should wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// So many; 0 makes every start a cold one.
    Fixed(usize),
    /// As many as the calls need.
    Adaptive {
        /// Minimum.
        min: usize,
        /// Maximum; no more than [`MOST`].
        max: usize,
        /// The share of calls that should find one ready, from 0 to 1.
        target: f64,
    },
}

impl Size {
    /// The fewest that wait.
    pub const fn least(self) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Adaptive { min, .. } => min,
        }
    }

    /// The most that wait.
    pub const fn most(self) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Adaptive { max, .. } => max,
        }
    }
}

/// How long it takes until a sandbox that was taken has been replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeadTime {
    /// Until it can begin, because calls have just begun.
    pub delay: Duration,
    /// From then until the sandbox waits.
    pub making: Duration,
}

impl Default for LeadTime {
    /// Before any was made.
    fn default() -> Self {
        Self { delay: Duration::from_millis(50), making: Duration::from_millis(150) }
    }
}

/// How many calls had each depth. Calls can count less with time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Depths {
    /// The weight of the calls by their depth. Nothing is deeper than [`MOST`].
    weights: Vec<f64>,
    as_of: Duration,
}

impl Depths {
    /// Of calls that all count the same.
    pub fn of(counts: impl IntoIterator<Item = f64>) -> Self {
        let weights = counts.into_iter().take(MOST + 1).map(|count| count.max(0.0)).collect();
        Self { weights, as_of: Duration::ZERO }
    }

    /// Adds a call.
    pub fn add(&mut self, depth: usize) {
        let depth = depth.min(MOST);
        if self.weights.len() <= depth {
            self.weights.resize(depth + 1, 0.0);
        }
        self.weights[depth] += 1.0;
    }

    /// Lets the calls so far count less, by the time that has passed.
    fn fade(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.as_of);
        // Calls of one second can as well count the same.
        if passed.as_secs() == 0 {
            return;
        }
        self.as_of = at;
        let factor = 0.5_f64.powf(passed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
    }

    /// The calls by their depth.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// The weight of all calls.
    pub fn total(&self) -> f64 {
        self.weights.iter().sum()
    }

    /// The weight of the calls for which a pool of this size has a sandbox ready, and a smaller one has not.
    fn gain(&self, size: usize) -> f64 {
        size.checked_sub(1).and_then(|depth| self.weights.get(depth)).copied().unwrap_or_default()
    }

    /// The share of the calls that find a sandbox ready in a pool of this size, if there were any.
    pub fn share(&self, size: usize) -> Option<f64> {
        let total = self.total();
        let ready: f64 = self.weights.iter().take(size.min(MOST)).sum();
        (total > 0.0).then(|| ready / total)
    }

    /// The smallest size with which the share of these calls that find a sandbox ready is at least this, if there is one.
    pub fn size_for(&self, target: f64) -> usize {
        let sizes = 0..self.weights.len().min(MOST);
        let is_enough = |size: &usize| self.share(*size).is_none_or(|share| share >= target);
        sizes.clone().find(is_enough).unwrap_or(sizes.end)
    }

    /// The size that a pool should have for the next calls: the smallest with which the share of calls that find a sandbox ready
    /// is at least this.
    ///
    /// One call more is taken to have needed none, so that nothing is kept for calls of long ago.
    pub fn wanted(&self, target: f64) -> usize {
        let needed = target * (self.total() + 1.0);
        let mut ready = 1.0;
        let mut size = 0;
        while ready < needed && size < self.weights.len().min(MOST) {
            ready += self.weights[size];
            size += 1;
        }
        size
    }
}

/// The calls of a pool since the beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The calls that were served, by their depth.
    pub depths: Depths,
    /// The most calls in a minute, from the first one on.
    pub busiest_minute: u64,
}

/// The calls of some pools whose sandboxes are made side by side.
#[derive(Debug)]
struct Demand {
    /// The times at which the slots for making sandboxes are free again, if every call's sandbox is replaced.
    makers: Vec<Duration>,
    pools: Vec<OfPool>,
}

#[derive(Debug, Default)]
struct OfPool {
    /// The times at which the sandboxes that are being made will wait.
    ends: VecDeque<Duration>,
    recent: Depths,
    seen: Seen,
    minutes: Minutes,
}

impl Demand {
    /// The demand of `pools` pools, for which `refills` sandboxes are made at the same time.
    fn new(refills: usize, pools: usize) -> Self {
        let pools = std::iter::repeat_with(OfPool::default).take(pools).collect();
        Self { makers: vec![Duration::ZERO; refills.max(1)], pools }
    }

    /// Changes the number of sandboxes that are made at the same time.
    fn set_refills(&mut self, refills: usize) {
        self.makers.resize(refills.max(1), Duration::ZERO);
    }

    /// A call takes a sandbox of a pool. Returns its depth. Times of calls must not go back.
    fn arrive(&mut self, pool: usize, at: Duration, lead: LeadTime) -> usize {
        let Some(pool) = self.pools.get_mut(pool) else { return 0 };
        while pool.ends.front().is_some_and(|end| *end <= at) {
            pool.ends.pop_front();
        }
        let depth = pool.ends.len();
        // Sandboxes beyond that are not made in time for any call.
        if depth < MOST
            && let Some(free) = self.makers.iter_mut().min()
        {
            let end = (*free).max(at + lead.delay) + lead.making;
            *free = end;
            pool.ends.push_back(end);
        }
        pool.recent.fade(at);
        pool.recent.add(depth);
        depth
    }
}

/// A size that grows at once and shrinks slowly.
#[derive(Debug, Clone, Copy)]
struct Slow {
    size: usize,
    /// Since when less was asked for.
    less_since: Option<Duration>,
}

impl Slow {
    fn follow(&mut self, asked: usize, at: Duration) -> usize {
        if asked >= self.size {
            *self = Self { size: asked, less_since: None };
        } else if at.saturating_sub(*self.less_since.get_or_insert(at)) >= SHRINK_AFTER {
            *self = Self { size: self.size - 1, less_since: Some(at) };
        }
        self.size
    }
}

/// A pool's request for a part of the memory that all share.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Number of sandboxes that each pool gets before any gets more.
    pub min: usize,
    /// Wanted number of sandboxes.
    pub wanted: usize,
    /// Bytes for each.
    pub each: u64,
    /// Its calls.
    pub depths: &'a Depths,
}

/// Sizes that fit into `memory` bytes together. First come the minima, one for each pool after the other. The rest goes one by
/// one to the pool where it serves the most calls for each byte.
pub fn fit(asks: &[Ask<'_>], memory: Option<u64>) -> Vec<usize> {
    let Some(mut left) = memory else { return asks.iter().map(|ask| ask.wanted).collect() };
    let mut sizes = vec![0; asks.len()];
    let minima = asks.iter().map(|ask| ask.min.min(ask.wanted)).max().unwrap_or_default();
    for size in 1..=minima {
        for (ask, has) in asks.iter().zip(&mut sizes) {
            if size <= ask.min.min(ask.wanted) && ask.each <= left && *has + 1 == size {
                left -= ask.each;
                *has = size;
            }
        }
    }
    loop {
        let rate = |at: usize| asks[at].depths.gain(sizes[at] + 1) / asks[at].each.max(1) as f64;
        let more = (0..asks.len()).filter(|at| {
            let ask = &asks[*at];
            sizes[*at] < ask.wanted && ask.each <= left
        });
        // The first of those that are worth the same.
        let Some(best) = more.reduce(|best, at| if rate(at) > rate(best) { at } else { best })
        else {
            return sizes;
        };
        left -= asks[best].each;
        sizes[best] += 1;
    }
}

/// The sizes of some pools, as their calls want them.
#[derive(Debug)]
pub struct Sizes {
    demand: Demand,
    pools: Vec<(Size, Slow)>,
    memory: Option<u64>,
}

impl Sizes {
    /// The sizes of pools for which `refills` sandboxes are made at the same time, within `memory` bytes if there is a bound.
    pub fn new(refills: usize, memory: Option<u64>, sizes: impl IntoIterator<Item = Size>) -> Self {
        let at_first = |size: Size| (size, Slow { size: size.least(), less_since: None });
        let pools: Vec<_> = sizes.into_iter().map(at_first).collect();
        Self { demand: Demand::new(refills, pools.len()), pools, memory }
    }

    /// A call takes a sandbox of a pool. Returns its depth.
    pub fn arrive(&mut self, pool: usize, at: Duration, lead: LeadTime) -> usize {
        self.demand.arrive(pool, at, lead)
    }

    /// A call that came at this time with this depth was served.
    pub fn served(&mut self, pool: usize, at: Duration, depth: usize) {
        if let Some(pool) = self.demand.pools.get_mut(pool) {
            pool.seen.depths.add(depth);
            pool.minutes.add(at);
            pool.seen.busiest_minute = pool.minutes.busiest();
        }
    }

    /// The calls of a pool.
    pub fn seen(&self, pool: usize) -> Option<&Seen> {
        self.demand.pools.get(pool).map(|pool| &pool.seen)
    }

    /// Adds a pool, and returns its place.
    pub fn add(&mut self, size: Size) -> usize {
        self.demand.pools.push(OfPool::default());
        self.pools.push((size, Slow { size: size.least(), less_since: None }));
        self.pools.len() - 1
    }

    /// Changes the number of sandboxes that are made at the same time.
    pub fn set_refills(&mut self, refills: usize) {
        self.demand.set_refills(refills);
    }

    /// Sets what a pool's size may be.
    pub fn set(&mut self, pool: usize, size: Size) {
        if let Some((is, slow)) = self.pools.get_mut(pool) {
            *is = size;
            slow.size = slow.size.clamp(size.least(), size.most());
        }
    }

    /// Sets the bytes that all may take.
    pub fn bound(&mut self, memory: Option<u64>) {
        self.memory = memory;
    }

    /// Whether there is such a bound.
    pub fn is_bounded(&self) -> bool {
        self.memory.is_some()
    }

    /// The size of each pool at a moment, with the bytes that each sandbox of each pool takes.
    pub fn at(&mut self, at: Duration, each: &[u64]) -> Vec<usize> {
        let Self { demand, pools, memory } = self;
        let mut asks = Vec::with_capacity(pools.len());
        for ((index, (size, slow)), of_pool) in pools.iter_mut().enumerate().zip(&mut demand.pools)
        {
            of_pool.recent.fade(at);
            let wanted = match *size {
                Size::Fixed(size) => size,
                Size::Adaptive { min, max, target } => {
                    slow.follow(of_pool.recent.wanted(target).clamp(min, max.max(min)), at)
                }
            };
            let each = each.get(index).copied().unwrap_or_default();
            asks.push(Ask { min: size.least(), wanted, each, depths: &of_pool.recent });
        }
        fit(&asks, *memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAD: LeadTime =
        LeadTime { delay: Duration::from_millis(20), making: Duration::from_millis(100) };

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn adaptive(min: usize, max: usize) -> Size {
        Size::Adaptive { min, max, target: 0.99 }
    }

    #[test]
    fn a_call_is_as_deep_as_sandboxes_are_being_made() {
        let mut demand = Demand::new(2, 2);
        let mut at = |pool, ms| demand.arrive(pool, Duration::from_millis(ms), LEAD);
        // Two at a time, from 20 ms on: they are there at 120, 120, 220, 220 ms.
        assert_eq!([at(0, 0), at(0, 0), at(0, 0), at(0, 0)], [0, 1, 2, 3]);
        assert_eq!([at(0, 119), at(0, 120), at(0, 220)], [4, 3, 2]);
        // Another pool has none, but waits for the same makers: until 320 and 420 ms they make what came at 119 to 220 ms.
        assert_eq!([at(1, 220), at(1, 400), at(1, 421)], [0, 1, 1]);
        // A minute begins with the first call, and only calls that are served count for the advice.
        let mut sizes = Sizes::new(2, None, [Size::Fixed(1)]);
        for at in [59.0, 61.0, 118.9, 119.1] {
            let depth = sizes.arrive(0, secs(at), LEAD);
            sizes.served(0, secs(at), depth);
        }
        sizes.arrive(0, secs(300.0), LEAD);
        let seen = sizes.seen(0).unwrap();
        assert_eq!((seen.depths.total(), seen.busiest_minute), (4.0, 3));
    }

    #[test]
    fn a_size_is_the_quantile_of_the_depths() {
        let depths = Depths::of([900.0, 80.0, 15.0, 5.0]);
        assert_eq!([0.5, 0.95, 0.99, 0.999].map(|target| depths.wanted(target)), [1, 2, 3, 4]);
        assert_eq!(
            [0, 1, 2, 4, 9].map(|size| depths.share(size).unwrap()),
            [0.0, 0.9, 0.98, 1.0, 1.0]
        );
        assert_eq!((Depths::default().share(3), Depths::default().wanted(0.99)), (None, 0));
        // Calls that are deeper than all sizes can't be served.
        let mut deep = Depths::default();
        (0..MOST * 2).for_each(|depth| deep.add(depth));
        assert_eq!((deep.wanted(1.0), deep.share(MOST * 2)), (MOST, Some(0.5)));
    }

    #[test]
    fn sizes_grow_with_the_first_burst_and_shrink_when_it_is_long_ago() {
        let mut sizes = Sizes::new(2, None, [adaptive(1, 16)]);
        assert_eq!(sizes.at(secs(0.0), &[1]), [1]);
        (0..8).for_each(|_| _ = sizes.arrive(0, secs(1.0), LEAD));
        assert_eq!(sizes.at(secs(1.0), &[1]), [8]);
        let mut least = 8;
        for minute in 1..=30 {
            let [size] = sizes.at(secs(60.0 * f64::from(minute)), &[1])[..] else { unreachable!() };
            assert_eq!(size, 8, "half an hour later, at minute {minute}");
        }
        for minute in 31..=120 {
            let [size] = sizes.at(secs(60.0 * f64::from(minute)), &[1])[..] else { unreachable!() };
            assert!(least - size <= 1, "one by one");
            least = size;
        }
        assert_eq!(least, 1);
    }

    #[test]
    fn sizes_stay_within_their_bounds_and_fixed_ones_are_left() {
        let mut sizes = Sizes::new(2, None, [adaptive(2, 5), Size::Fixed(3), adaptive(0, 16)]);
        assert_eq!(sizes.at(secs(0.0), &[1; 3]), [2, 3, 0]);
        for _ in 0..40 {
            (0..2).for_each(|pool| _ = sizes.arrive(pool, secs(1.0), LEAD));
        }
        assert_eq!(sizes.at(secs(1.0), &[1; 3]), [5, 3, 0]);
        sizes.set(0, Size::Fixed(4));
        sizes.set(1, adaptive(1, 32));
        assert_eq!(sizes.at(secs(2.0), &[1; 3]), [4, 32, 0]);
    }

    #[test]
    fn memory_goes_to_the_minima_first_and_then_where_it_serves_most_calls() {
        let (many, few) = (Depths::of([50.0, 40.0, 30.0, 5.0]), Depths::of([9.0, 8.0, 7.0]));
        let asks = [
            Ask { min: 1, wanted: 4, each: 10, depths: &many },
            Ask { min: 1, wanted: 3, each: 2, depths: &few },
            Ask { min: 0, wanted: 0, each: 1, depths: &few },
        ];
        assert_eq!(fit(&asks, None), [4, 3, 0]);
        assert_eq!(fit(&asks, Some(46)), [4, 3, 0]);
        // The last one of the first pool is worth the least.
        assert_eq!(fit(&asks, Some(45)), [3, 3, 0]);
        assert_eq!(fit(&asks, Some(16)), [1, 3, 0]);
        // The bound is above the minima.
        assert_eq!(fit(&asks, Some(11)), [1, 0, 0]);
        assert_eq!(fit(&asks, Some(3)), [0, 1, 0]);
        for memory in 0..60 {
            let sizes = fit(&asks, Some(memory));
            let used: u64 =
                asks.iter().zip(&sizes).map(|(ask, size)| ask.each * *size as u64).sum();
            assert!(used <= memory, "{sizes:?} within {memory}");
        }
    }

    #[test]
    fn a_memory_bound_holds_at_once() {
        let mut sizes = Sizes::new(2, None, [adaptive(1, 16), adaptive(1, 16)]);
        for _ in 0..16 {
            (0..2).for_each(|pool| _ = sizes.arrive(pool, secs(1.0), LEAD));
        }
        assert_eq!(sizes.at(secs(1.0), &[10, 10]), [16, 16]);
        sizes.bound(Some(100));
        assert_eq!(sizes.at(secs(1.0), &[10, 10]).iter().sum::<usize>(), 10);
    }
}
