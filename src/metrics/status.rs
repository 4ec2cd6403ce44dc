//! The state of a server, for the page that operators look at and for `isolator status`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use isolator_pool::counts::Count;
use isolator_pool::engine::WaitingMemory;
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::PoolCounts;
use isolator_pool::pool::sizing::Seen;
use serde::Serialize;

use super::history::{INTERVAL, Interval};
use super::{Inner, Sources};
use crate::sessions::SessionCounts;

/// The state of a server.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    version: &'static str,
    engine: &'static str,
    /// How long it has been running.
    uptime_s: u64,
    /// Requests that run, and requests that wait for their turn.
    running: usize,
    waiting: usize,
    /// Used sandboxes that are not removed yet.
    leaving: usize,
    sessions: SessionCounts,
    /// Those with requests, the one with the most first.
    clients: Vec<OneClient>,
    pools: BTreeMap<String, OnePool>,
    failures: Vec<OneFailure>,
    /// The length of each interval.
    interval_s: u64,
    /// The last minutes, the oldest interval first.
    intervals: Vec<Interval>,
}

#[derive(Debug, Serialize)]
struct OneClient {
    name: String,
    running: usize,
    waiting: usize,
}

#[derive(Debug, Serialize)]
struct OnePool {
    /// Sandboxes that should wait at rest, and what that can be.
    size: usize,
    min: usize,
    max: usize,
    hot: usize,
    paused: usize,
    making: usize,
    in_use: usize,
    /// Programs with an outcome since the start, by how they got their sandbox.
    starts: BTreeMap<&'static str, u64>,
    /// The mean time of making a sandbox.
    refill_ms: Option<f64>,
    /// How long replacing a sandbox typically takes, with all that waits in it: until it begins, and from then on.
    delay_ms: Option<f64>,
    making_ms: Option<f64>,
    /// Calls since the start by how many sandboxes of the pool were being made when they came, and the most in a minute.
    depths: Vec<f64>,
    busiest_minute: u64,
    memory_bytes: Option<u64>,
    /// The same for each sandbox.
    sandbox_bytes: Option<u64>,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct OneFailure {
    at: String,
    pool: String,
    message: String,
    count: u64,
}

/// With one digit after the point.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// The most clients and failures that are told.
const MOST_CLIENTS: usize = 20;

impl Status {
    pub(super) fn of(inner: &Inner, sources: &Sources) -> Self {
        let Inner { waiting: waiting_memory, history, began, .. } = inner;
        let pools = &sources.pools;
        let (running, waiting) = pools.load();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut clients: Vec<_> = pools
            .clients()
            .into_iter()
            .map(|(client, running, waiting)| OneClient {
                name: client.to_string(),
                running,
                waiting,
            })
            .collect();
        clients.sort_by(|a, b| {
            (b.running + b.waiting).cmp(&(a.running + a.waiting)).then(a.name.cmp(&b.name))
        });
        clients.truncate(MOST_CLIENTS);
        let memory = waiting_memory.known();
        let mut status = pools.status();
        let of_pool = |(name, counts): (&str, &PoolCounts)| {
            let status = status.remove(name)?;
            let sums: [u64; Start::ALL.len()] =
                counts.executions.each_ref().map(|of_start| of_start.iter().map(Count::get).sum());
            let starts = Start::ALL.map(Start::as_str).into_iter().zip(sums).collect();
            let made = counts.made.count();
            let mean = || counts.made.sum() / u32::try_from(made).unwrap_or(u32::MAX);
            let Seen { depths, busiest_minute } = pools.seen(name).unwrap_or_default();
            let pool = OnePool {
                size: status.size,
                min: status.sizes.least(),
                max: status.sizes.most(),
                delay_ms: status.lead.map(|lead| ms(lead.delay)),
                making_ms: status.lead.map(|lead| ms(lead.making)),
                depths: depths.weights().to_vec(),
                busiest_minute,
                hot: status.hot,
                paused: status.paused,
                making: status.making,
                in_use: counts.in_use(),
                starts,
                refill_ms: (made > 0).then(|| ms(mean())),
                memory_bytes: memory.get(name).map(|memory| memory.sandboxes),
                sandbox_bytes: memory.get(name).and_then(WaitingMemory::each),
                last_error: status.last_error,
            };
            Some((name.to_owned(), pool))
        };
        let pools_by_name = pools.counts().filter_map(of_pool).collect();
        let failures = pools.shared_counts().recent_failures().into_iter().map(|failure| {
            let at = format_rfc3339_seconds(failure.at).to_string();
            OneFailure { at, pool: failure.pool, message: failure.message, count: failure.count }
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            engine: sources.engine,
            uptime_s: (now.as_secs_f64() - began).max(0.0) as u64,
            running,
            waiting,
            leaving: pools.leaving(),
            sessions: sources.sessions.counts(),
            clients,
            pools: pools_by_name,
            failures: failures.collect(),
            interval_s: INTERVAL.as_secs(),
            intervals: history.intervals(),
        }
    }
}
