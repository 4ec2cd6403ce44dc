//! Counters since the start of this process, for operators.
//!
//! Each is an atomic number, so that counting costs a request nothing that can be measured.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds to it.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sum of durations.
#[derive(Debug, Default)]
pub struct TimeSum(Count);

impl TimeSum {
    /// Adds a duration to it.
    pub fn add(&self, time: Duration) {
        self.0.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The current value.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

/// The upper bounds of the buckets of [`Times`], in seconds; the last bucket has none. A hot call takes 2 ms, so the first bounds
/// are far below the 10 ms with which most lists begin: there, all hot calls and most warm ones would be in one bucket.
pub const BOUNDS: [f64; 19] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 300.0,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Times {
    buckets: [Count; BOUNDS.len() + 1],
    sum: TimeSum,
}

impl Times {
    /// Adds one.
    pub fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].add(1);
        self.sum.add(time);
    }

    /// The number in each bucket, without those of the buckets before it.
    pub fn buckets(&self) -> [u64; BOUNDS.len() + 1] {
        self.buckets.each_ref().map(Count::get)
    }

    /// Their number.
    pub fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        self.sum.get()
    }
}

/// Maximum number of kinds of calls to an engine.
const KINDS: usize = 64;

/// Why a call to an engine has failed.
pub const CALL_FAILURES: [&str; 6] =
    ["unreachable", "unusable", "deadline", "no_such_image", "disk_full", "refused"];

/// The calls of one kind to the engines of this process.
#[derive(Debug)]
pub struct Calls {
    name: OnceLock<String>,
    /// All that were answered, or not in time.
    pub ended: Count,
    /// Those of them that failed, by [`CALL_FAILURES`].
    pub failed: [Count; CALL_FAILURES.len()],
}

impl Calls {
    const fn new() -> Self {
        Self { name: OnceLock::new(), ended: Count::new(), failed: [const { Count::new() }; 6] }
    }

    /// The name of the call, in words that are joined by `_`.
    pub fn name(&self) -> &str {
        self.name.get().map_or("", String::as_str)
    }
}

/// Calls go through a function that knows no server, and a process has one engine.
static CALLS: [Calls; KINDS] = [const { Calls::new() }; KINDS];

/// The calls to the engines of this process, of each kind that there was.
pub fn engine_calls() -> impl Iterator<Item = &'static Calls> {
    CALLS.iter().filter(|calls| calls.name.get().is_some())
}

/// Counts a call that has ended. `kind` is its number, and `name` its name in camel case.
pub(crate) fn engine_call(kind: usize, name: impl FnOnce() -> String, failure: Option<usize>) {
    let Some(calls) = CALLS.get(kind) else { return };
    calls.name.get_or_init(|| snake_case(&name()));
    calls.ended.add(1);
    if let Some(failed) = failure.and_then(|failure| calls.failed.get(failure)) {
        failed.add(1);
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        let times = Times::default();
        for (microseconds, bucket) in
            [(0, 0), (500, 0), (501, 1), (300_000_000, 18), (300_000_001, 19)]
        {
            let before = times.buckets()[bucket];
            times.add(Duration::from_micros(microseconds));
            assert_eq!(times.buckets()[bucket], before + 1, "{microseconds}");
        }
        assert_eq!(times.count(), 5);
        assert_eq!(times.sum(), Duration::from_micros(600_001_002));
    }

    #[test]
    fn a_call_is_counted_under_its_name_with_its_failure() {
        let kind = KINDS - 1;
        engine_call(kind, || "FindImage".to_owned(), None);
        engine_call(kind, || unreachable!(), Some(2));
        let calls = engine_calls().find(|calls| calls.name() == "find_image").unwrap();
        assert_eq!((calls.ended.get(), calls.failed[2].get()), (2, 1));
    }
}
