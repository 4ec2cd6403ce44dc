//! The state of a server, for the page that operators look at and for `isolator status`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use isolator_pool::counts::Count;
use isolator_pool::engine::WaitingMemory;
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::{Failure, PoolCounts, Program};
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
    /// What runs now, the oldest first.
    programs: Vec<OneProgram>,
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

/// A program, or a cell of a session. Its code is nobody's business.
#[derive(Debug, Serialize)]
struct OneProgram {
    pool: String,
    client: String,
    /// How a program got its sandbox; `session` for a cell.
    start: &'static str,
    /// How long it has been running.
    ms: f64,
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
    /// What an operator can do about it.
    advice: &'static str,
    count: u64,
}

/// With one digit after the point.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// The most clients and programs that are told.
const MOST_CLIENTS: usize = 20;
const MOST_PROGRAMS: usize = 50;

/// What an operator can do about such failures.
fn advice(failure: Failure) -> &'static str {
    match failure {
        Failure::Busy => {
            "More came than can run: raise requests.maxRunning if there is CPU time left, or requests.maxQueue if they can wait."
        }
        Failure::SessionBusy => {
            "A client sent more calls of one session than can wait for each other. No setting changes that: it has to wait for answers."
        }
        Failure::ImageComing => {
            "The image is still being built or pulled. `isolator image build` or `isolator image pull` shows how far it is."
        }
        Failure::NoSandbox | Failure::Sandbox => {
            "The log has the cause. `isolator doctor` checks the engine and this machine."
        }
        Failure::Stopping => "The server was stopping.",
        Failure::Cancelled => "The client went away.",
    }
}

/// What runs now, the oldest first.
fn programs(sources: &Sources) -> Vec<OneProgram> {
    let of_pools = sources.pools.counts().flat_map(|(pool, counts)| {
        let known = move |program: Program| {
            (program.since, pool.to_owned(), program.client, program.start.as_str())
        };
        counts.programs().into_iter().map(known)
    });
    let cells = sources.sessions.running().into_iter();
    let cells = cells.map(|(client, language, since)| (since, language, client, "session"));
    let mut all: Vec<_> = of_pools.chain(cells).collect();
    all.sort_by_key(|(since, ..)| *since);
    all.truncate(MOST_PROGRAMS);
    all.into_iter()
        .map(|(since, pool, client, start)| OneProgram {
            pool,
            client: client.to_string(),
            start,
            ms: ms(since.elapsed()),
        })
        .collect()
}

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
            OneFailure {
                at,
                pool: failure.pool,
                message: failure.message,
                advice: advice(failure.failure),
                count: failure.count,
            }
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
            programs: programs(sources),
            pools: pools_by_name,
            failures: failures.collect(),
            interval_s: INTERVAL.as_secs(),
            intervals: history.intervals(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_bound() {
        assert!(advice(Failure::Busy).contains("requests.maxQueue"));
        let of_session = advice(Failure::SessionBusy);
        assert!(!of_session.contains("requests.") && of_session.contains("wait for answers"));
    }
}
