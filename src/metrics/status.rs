//! The state of a server, for the page that operators look at and for `isolator status`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use isolator_pool::counts::Count;
use isolator_pool::engine::WaitingMemory;
use isolator_pool::pool::Start;
use isolator_pool::pool::counts::{Failure, PoolCounts, Program};
use isolator_pool::pool::sizing::Seen;
use serde::Serialize;

use super::history::{INTERVAL, Interval};
use super::reloads::FailedReload;
use super::sources::Sources;
use super::waiting::{Memory, template_bytes};
use crate::log;
use crate::sessions::SessionCounts;

/// Why a server is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The problem, without details. It is public.
    pub what: String,
    /// Details for operators: paths, and errors.
    pub detail: Option<String>,
}

impl Reason {
    /// A reason without details.
    pub(crate) fn public(what: &str) -> Self {
        Self { what: what.to_owned(), detail: None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

/// The state of a server.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// The reasons why it serves no call, or none in some language. Empty if it is ready.
    not_ready: Vec<String>,
    /// Problems although calls are served.
    warnings: Vec<String>,
    version: &'static str,
    engine: &'static str,
    uptime_s: u64,
    /// Requests that run, and requests that wait for their turn.
    running: usize,
    waiting: usize,
    /// Used sandboxes that are not removed yet.
    leaving: usize,
    sessions: SessionCounts,
    /// Templates that are ready to be forked, and their memory, if there are some.
    templates: Option<usize>,
    template_bytes: Option<u64>,
    /// Clients with requests, those with most first.
    clients: Vec<OneClient>,
    /// Running programs and cells, the oldest first.
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

/// A program, or a cell of a session. Its code is private.
#[derive(Debug, Serialize)]
struct OneProgram {
    pool: String,
    client: String,
    /// The kind of start of a program; `session` for a cell.
    start: &'static str,
    /// The time it has been running.
    ms: f64,
}

#[derive(Debug, Serialize)]
struct OnePool {
    /// The target number of idle sandboxes at rest, and its bounds.
    size: usize,
    min: usize,
    max: usize,
    hot: usize,
    paused: usize,
    making: usize,
    /// Sandboxes in which a program runs, and those of open sessions.
    in_use: usize,
    sessions: usize,
    /// Cells and commands of sessions, and sessions that were opened, since the start.
    cells: u64,
    sessions_opened: u64,
    /// Programs and sessions that got a sandbox since the start, by kind of start.
    starts: BTreeMap<&'static str, u64>,
    /// The typical time to replace a sandbox, with everything that is preloaded: until it begins, and from then on.
    delay_ms: Option<f64>,
    making_ms: Option<f64>,
    /// Calls since the start, by the number of sandboxes of the pool that were being made then, and the most calls in a minute.
    depths: Vec<f64>,
    busiest_minute: u64,
    memory_bytes: Option<u64>,
    /// The memory of one sandbox.
    sandbox_bytes: Option<u64>,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct OneFailure {
    at: String,
    pool: String,
    message: String,
    /// Advice for an operator.
    advice: &'static str,
    count: u64,
}

/// Milliseconds with one decimal.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// Most clients and programs that are listed.
const MOST_CLIENTS: usize = 20;
const MOST_PROGRAMS: usize = 50;

/// Advice for an operator about such failures.
fn advice(failure: Failure) -> &'static str {
    match failure {
        Failure::Busy => {
            "More came than can run: raise requests.maxRunning if there is CPU time left, or requests.maxQueue if they can wait. No \
             setting lets more programs wait for their check against a policy."
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

/// Problems although calls are served.
fn warnings(sources: &Sources) -> Vec<String> {
    let reload = sources.reloads.failure().map(|FailedReload { at, error }| {
        let at = format_rfc3339_seconds(at);
        let error = error.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        format!("the configuration was not loaded again at {at}, and the one before is in force: {error}")
    });
    // If calls are refused because of it, that is among the reasons already.
    let audit = sources.audit.failure().filter(|_| sources.audit.refusal().is_none());
    let lost = sources.audit.counts().map_or(0, |counts| counts.lost);
    let audit = audit.map(|why| {
        format!(
            "the audit log can't be written, so its lines are lost ({lost} since the start): {why}"
        )
    });
    reload.into_iter().chain(audit).chain(log::problem()).collect()
}

/// Running programs and cells, the oldest first.
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
    all.sort_unstable_by_key(|(since, ..)| *since);
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
    pub(super) fn of(
        sources: &Sources,
        memory: &Memory,
        intervals: Vec<Interval>,
        began: f64,
        not_ready: &[Reason],
    ) -> Self {
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
        clients.sort_unstable_by(|a, b| {
            (b.running + b.waiting).cmp(&(a.running + a.waiting)).then(a.name.cmp(&b.name))
        });
        clients.truncate(MOST_CLIENTS);
        let mut status = pools.status();
        let sessions = sources.sessions.by_language();
        let of_pool = |(name, counts): (&str, &PoolCounts)| {
            let status = status.remove(name)?;
            let starts = Start::ALL.map(Start::as_str).into_iter().zip(counts.starts()).collect();
            let sum = |counts: &[Count]| counts.iter().map(Count::get).sum();
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
                sessions: sessions.get(name).copied().unwrap_or_default(),
                cells: sum(&counts.cells),
                sessions_opened: sum(&counts.sessions),
                starts,
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
            not_ready: not_ready.iter().map(Reason::to_string).collect(),
            warnings: warnings(sources),
            version: env!("CARGO_PKG_VERSION"),
            engine: sources.engine,
            uptime_s: (now.as_secs_f64() - began).max(0.0) as u64,
            running,
            waiting,
            leaving: pools.leaving(),
            sessions: sources.sessions.counts(),
            templates: pools.templates(),
            template_bytes: template_bytes(memory),
            clients,
            programs: programs(sources),
            pools: pools_by_name,
            failures: failures.collect(),
            interval_s: INTERVAL.as_secs(),
            intervals,
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
