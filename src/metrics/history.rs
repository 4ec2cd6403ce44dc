//! The last minutes: the numbers of programs, cells and sessions in each interval, their times, and the queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use isolator_pool::counts::{BOUNDS, Count};
use isolator_pool::lock::lock;
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::PoolCounts;
use isolator_pool::pool::pools::Pools;
use serde::Serialize;

/// The time between two records.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// Records of a quarter of an hour.
const MOST: usize = 181;

type Buckets = [u64; BOUNDS.len() + 1];

/// The sums of a pool at one moment, and its state. Sums only grow, also if a pool is removed and added again.
#[derive(Debug, Clone, Copy)]
struct Look {
    calls: u64,
    cells: u64,
    sessions_opened: u64,
    starts: [u64; Start::ALL.len()],
    call_times: Buckets,
    cell_times: Buckets,
    ready: usize,
    in_use: usize,
}

/// All pools at one moment.
#[derive(Debug)]
struct Moment {
    pools: BTreeMap<String, Look>,
    queue: usize,
}

/// The last moments.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<Moment>>);

/// The events of an interval.
#[derive(Debug, Serialize)]
pub(super) struct Interval {
    /// Requests that wait for their turn, at its end.
    queue: usize,
    pools: BTreeMap<String, OfPool>,
}

/// The events of one pool in an interval.
#[derive(Debug, Serialize)]
struct OfPool {
    /// Programs with an outcome.
    calls: u64,
    /// Cells and commands of sessions.
    cells: u64,
    sessions_opened: u64,
    /// Programs and sessions that got a sandbox, and those of them that got one from the pool.
    starts: u64,
    ready_starts: u64,
    /// Times of programs in milliseconds, if there were any.
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    cell_times: Quantiles,
    /// Idle sandboxes, at its end.
    ready: usize,
    /// Sandboxes in which a program runs, at its end.
    in_use: usize,
}

/// Times in milliseconds, if there were any.
#[derive(Debug, Serialize)]
struct Quantiles {
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Quantiles {
    /// The quantiles of the times between two moments.
    fn between(before: &Buckets, after: &Buckets) -> Self {
        let mut times = *after;
        for (count, before) in times.iter_mut().zip(before) {
            *count -= before;
        }
        let at = |share| quantile(&times, share).map(|seconds| (seconds * 1e5).round() / 100.0);
        Self { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
    }
}

impl History {
    /// Records the pools now.
    pub(super) fn look(&self, pools: &Pools) {
        let mut status = pools.status();
        let of_pool = |(name, counts): (&str, &PoolCounts)| {
            let ready = status.remove(name).map_or(0, |status| status.hot + status.paused);
            (name.to_owned(), Look::at(counts, ready))
        };
        let looks = pools.counts().map(of_pool).collect();
        let (_, queue) = pools.load();
        let mut moments = lock(&self.0);
        if moments.len() == MOST {
            moments.pop_front();
        }
        moments.push_back(Moment { pools: looks, queue });
    }

    /// The intervals between the moments, the oldest first.
    pub(super) fn intervals(&self) -> Vec<Interval> {
        let moments = lock(&self.0);
        moments.iter().zip(moments.iter().skip(1)).map(|(from, to)| to.since(from)).collect()
    }
}

impl Look {
    fn at(counts: &PoolCounts, ready: usize) -> Self {
        let mut call_times = [0; BOUNDS.len() + 1];
        for of_start in &counts.times {
            for (sum, count) in call_times.iter_mut().zip(of_start.buckets()) {
                *sum += count;
            }
        }
        let sum = |counts: &[Count]| counts.iter().map(Count::get).sum::<u64>();
        Self {
            calls: counts.executions.iter().map(|of_start| sum(of_start)).sum(),
            cells: sum(&counts.cells),
            sessions_opened: sum(&counts.sessions),
            starts: counts.starts(),
            call_times,
            cell_times: counts.cell_times.buckets(),
            ready,
            in_use: counts.in_use(),
        }
    }

    fn since(&self, before: &Self) -> OfPool {
        let starts = |start: Start| self.starts[start as usize] - before.starts[start as usize];
        let Quantiles { p50_ms, p95_ms, p99_ms } =
            Quantiles::between(&before.call_times, &self.call_times);
        OfPool {
            calls: self.calls - before.calls,
            cells: self.cells - before.cells,
            sessions_opened: self.sessions_opened - before.sessions_opened,
            starts: Start::ALL.into_iter().map(starts).sum(),
            ready_starts: starts(Start::Hot) + starts(Start::Warm),
            p50_ms,
            p95_ms,
            p99_ms,
            cell_times: Quantiles::between(&before.cell_times, &self.cell_times),
            ready: self.ready,
            in_use: self.in_use,
        }
    }
}

impl Moment {
    fn since(&self, before: &Self) -> Interval {
        let of_pool = |(name, look): (&String, &Look)| {
            let before = before.pools.get(name)?;
            Some((name.clone(), look.since(before)))
        };
        Interval { queue: self.queue, pools: self.pools.iter().filter_map(of_pool).collect() }
    }
}

/// The time in seconds below which this share of the times is, interpolated within a bucket. `None` if there are none.
pub(super) fn quantile(buckets: &Buckets, share: f64) -> Option<f64> {
    let count: u64 = buckets.iter().sum();
    if count == 0 {
        return None;
    }
    let rank = share * count as f64;
    let mut below = 0;
    for (at, of_bucket) in buckets.iter().enumerate() {
        if (below + of_bucket) as f64 >= rank && *of_bucket > 0 {
            let low = if at == 0 { 0.0 } else { BOUNDS[at - 1] };
            // The last bucket has no end.
            let high = BOUNDS.get(at).copied().unwrap_or(low);
            let part = (rank - below as f64).max(0.0) / *of_bucket as f64;
            return Some(low + (high - low) * part);
        }
        below += of_bucket;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_where_its_share_of_the_times_ends() {
        let mut buckets = [0; BOUNDS.len() + 1];
        assert_eq!(quantile(&buckets, 0.5), None);
        // 90 between 2 and 3 ms, 10 between 100 and 250 ms.
        buckets[3] = 90;
        buckets[10] = 10;
        let near = |share, expected: f64| {
            let found = quantile(&buckets, share).unwrap();
            assert!((found - expected).abs() < 1e-9, "{share}: {found}");
        };
        near(0.0, 0.002);
        near(0.45, 0.0025);
        near(0.9, 0.003);
        near(0.95, 0.175);
        near(1.0, 0.25);
        // A time above all bounds counts as the last one.
        buckets = [0; BOUNDS.len() + 1];
        buckets[BOUNDS.len()] = 1;
        assert_eq!(quantile(&buckets, 0.5), Some(BOUNDS[BOUNDS.len() - 1]));
    }
}
