//! The state of a server, for the page that operators look at and for `isolator status`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use isolator_pool::counts::Count;
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::PoolCounts;
use serde::Serialize;

use super::Inner;
use super::history::{INTERVAL, Interval};
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
    size: usize,
    hot: usize,
    paused: usize,
    making: usize,
    in_use: usize,
    /// Programs with an outcome since the start, by how they got their sandbox.
    starts: BTreeMap<&'static str, u64>,
    /// The mean time of making a sandbox.
    refill_ms: Option<f64>,
    memory_bytes: Option<u64>,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct OneFailure {
    at: String,
    pool: String,
    message: String,
    count: u64,
}

/// The most clients and failures that are told.
const MOST_CLIENTS: usize = 20;

impl Status {
    pub(super) fn of(inner: &Inner) -> Self {
        let Inner { sources, waiting: waiting_memory, history, began } = inner;
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
            let mean = || counts.made.sum().as_secs_f64() * 1e3 / made as f64;
            let pool = OnePool {
                size: status.size,
                hot: status.hot,
                paused: status.paused,
                making: status.making,
                in_use: counts.in_use(),
                starts,
                refill_ms: (made > 0).then(|| (mean() * 10.0).round() / 10.0),
                memory_bytes: memory.get(name).map(|memory| memory.sandboxes),
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
