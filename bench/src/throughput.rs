//! Sustained throughput: how many requests a second are answered when several clients never stop asking.
//!
//! The contenders take turns in short slices, at least two each, so that whatever else the machine does
//! meanwhile hits all alike. A pool that is full at the start of a slice is used up before counting begins:
//! what counts is how fast sandboxes are made, used and removed, and not what was made ahead.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::Serialize;

use crate::error::BenchError;
use crate::scenario::Scenario;
use crate::scenario::TargetKind;

/// Clients that ask at the same time.
pub const CLIENTS: usize = 4;

/// Each contender has at least so many turns.
const MIN_ROUNDS: u32 = 2;

/// A slice is long enough for a slow start or two, and short enough that the machine is still the same when all
/// have had their turn.
const MIN_SLICE: Duration = Duration::from_millis(500);
const MAX_SLICE: Duration = Duration::from_secs(3);

/// Who answers the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// The plain Docker API: a container made for each request.
    DockerCold,
    /// A server on Docker with the configured pool.
    Isolator,
    /// A server on the embedded engine with the configured pool.
    Embedded,
}

impl Contender {
    /// Who answers in a scenario.
    pub(crate) fn of(scenario: Scenario) -> Self {
        match scenario.server().map(|server| server.kind) {
            None => Self::DockerCold,
            Some(TargetKind::Docker) => Self::Isolator,
            Some(TargetKind::Embedded) => Self::Embedded,
        }
    }

    /// What tables and errors call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::DockerCold => "docker API, cold",
            Self::Isolator => "isolator on docker",
            Self::Embedded => "isolator embedded",
        }
    }
}

/// What all contenders did.
#[derive(Debug, Clone, Serialize)]
pub struct Throughput {
    /// The program and its language.
    pub program: String,
    /// Clients that asked at the same time.
    pub clients: usize,
    /// One for each contender.
    pub rows: Vec<Rate>,
}

/// What one contender did.
#[derive(Debug, Clone, Serialize)]
pub struct Rate {
    /// Who answered.
    pub contender: Contender,
    /// Answers that count.
    pub n: usize,
    /// Answers a second, of all slices.
    pub per_second: f64,
    /// The same of each slice, in the order in which they were taken.
    pub slices_per_second: Vec<f64>,
    /// How many times more that is than the first contender's.
    pub times_more: f64,
}

/// One contender's turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    answers: usize,
    /// Of all clients together.
    time: Duration,
}

impl Slice {
    fn per_second(self) -> f64 {
        self.answers as f64 * CLIENTS as f64 / self.time.as_secs_f64()
    }
}

/// Lets all clients ask for `length` after `ahead` requests, which use up what was made ahead: as many as
/// there is, and one for each client, because all of them begin at once. Each client's time ends with its
/// last answer, so that none is charged for waiting for the others.
pub(crate) async fn slice(
    ahead: usize,
    length: Duration,
    request: impl AsyncFn() -> Result<(), BenchError>,
) -> Result<Slice, BenchError> {
    let asked = AtomicUsize::new(0);
    let client = async || {
        while asked.fetch_add(1, Ordering::Relaxed) < ahead {
            request().await?;
        }
        let (began, mut answers) = (Instant::now(), 0);
        while answers == 0 || began.elapsed() < length {
            request().await?;
            answers += 1;
        }
        Ok::<_, BenchError>((answers, began.elapsed()))
    };
    let clients = try_join_all((0..CLIENTS).map(|_| client())).await?;
    let answers = clients.iter().map(|(answers, _)| answers).sum();
    Ok(Slice { answers, time: clients.iter().map(|(_, time)| *time).sum() })
}

/// Who is next, and what was measured of all.
#[derive(Debug)]
pub(crate) struct Turns {
    until: Instant,
    length: Duration,
    done: Vec<(Contender, Vec<Slice>)>,
}

impl Turns {
    /// Turns until `until`, and at least [`MIN_ROUNDS`] for each.
    pub(crate) fn new(contenders: impl IntoIterator<Item = Contender>, until: Instant) -> Self {
        let done: Vec<_> = contenders.into_iter().map(|found| (found, Vec::new())).collect();
        let turns = MIN_ROUNDS * u32::try_from(done.len()).unwrap_or(u32::MAX).max(1);
        // Using pools up and filling them again takes as long as the slices.
        let length = until.saturating_duration_since(Instant::now()) / (turns * 2);
        Self { until, length: length.clamp(MIN_SLICE, MAX_SLICE), done }
    }

    /// The next contender and the length of its slice. A round that has begun is completed; none begins when
    /// there is no time for it.
    pub(crate) fn next(&self) -> Option<(Contender, Duration)> {
        let (contender, slices) = self.done.iter().min_by_key(|(_, slices)| slices.len())?;
        let rounds = slices.len();
        let is_new = self.done.iter().all(|(_, slices)| slices.len() == rounds);
        let round = self.length * 2 * u32::try_from(self.done.len()).unwrap_or(u32::MAX);
        let is_due =
            rounds < MIN_ROUNDS as usize || !is_new || Instant::now() + round <= self.until;
        is_due.then_some((*contender, self.length))
    }

    pub(crate) fn add(&mut self, contender: Contender, slice: Slice) {
        let of = self.done.iter_mut().find(|(found, _)| *found == contender);
        if let Some((_, slices)) = of {
            slices.push(slice);
        }
    }

    pub(crate) fn into_throughput(self, program: String) -> Throughput {
        let mut rows: Vec<Rate> = Vec::new();
        for (contender, slices) in self.done {
            let all = Slice {
                answers: slices.iter().map(|slice| slice.answers).sum(),
                time: slices.iter().map(|slice| slice.time).sum(),
            };
            let per_second = all.per_second();
            rows.push(Rate {
                contender,
                n: all.answers,
                per_second,
                slices_per_second: slices.into_iter().map(Slice::per_second).collect(),
                times_more: per_second / rows.first().map_or(per_second, |first| first.per_second),
            });
        }
        Throughput { program, clients: CLIENTS, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_made_ahead_does_not_count() {
        let asked = AtomicUsize::new(0);
        let request = async || {
            asked.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let slice = slice(10, Duration::ZERO, request).await.unwrap();
        assert_eq!((slice.answers, asked.into_inner()), (CLIENTS, 10 + CLIENTS));
    }

    #[test]
    fn a_rate_is_that_of_all_clients_together() {
        let slice = Slice { answers: 12, time: Duration::from_secs(2) * CLIENTS as u32 };
        assert!((slice.per_second() - 6.0).abs() < 1e-9);
    }

    #[test]
    fn without_time_all_have_two_turns_one_after_the_other() {
        use Contender::{DockerCold, Embedded, Isolator};
        let mut turns = Turns::new([DockerCold, Isolator, Embedded], Instant::now());
        let mut order = Vec::new();
        while let Some((contender, length)) = turns.next() {
            assert_eq!(length, MIN_SLICE);
            order.push(contender);
            turns.add(contender, Slice { answers: 1, time: MIN_SLICE });
        }
        assert_eq!(order, [DockerCold, Isolator, Embedded, DockerCold, Isolator, Embedded]);
    }
}
