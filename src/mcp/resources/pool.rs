//! `isolator://pool`: the current state of the server.

use std::collections::BTreeMap;

use isolator_pool::pool::PoolStatus;
use isolator_pool::pool::pools::Pools;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Status<'a> {
    /// Programs that run, of all languages and clients.
    running: usize,
    /// Those that wait for their turn.
    waiting: usize,
    /// Used sandboxes that are not removed yet.
    leaving: usize,
    /// Proportional memory (PSS) of the templates, which sandboxes of all pools are forked from.
    #[serde(skip_serializing_if = "Option::is_none")]
    templates_bytes: Option<u64>,
    pools: BTreeMap<&'a str, OnePool>,
}

#[derive(Serialize)]
struct OnePool {
    size: usize,
    hot: usize,
    paused: usize,
    making: usize,
    /// Proportional memory (PSS) of the sandboxes that wait, if the engine can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Programs since the server began, by how they got their sandbox.
    starts: Starts,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    preload: Preload,
}

#[derive(Serialize)]
struct Starts {
    hot: u64,
    warm: u64,
    queued: u64,
    cold: u64,
}

/// The state of the preloaded interpreters.
#[derive(Serialize)]
struct Preload {
    memory_bytes: u64,
    complaints: Vec<String>,
}

pub(super) async fn of(pools: &Pools) -> Status<'_> {
    let memory = pools.memory().await;
    let (running, waiting) = pools.load();
    let leaving = pools.leaving();
    let templates_bytes = memory.values().map(|memory| memory.templates).max();
    let one = |(name, status)| {
        let waiting_bytes = memory.get(name).map(|memory| memory.sandboxes);
        (name, OnePool::new(status, waiting_bytes, pools.image(name)))
    };
    let pools = pools.status().into_iter().map(one).collect();
    Status { running, waiting, leaving, templates_bytes, pools }
}

impl OnePool {
    fn new(status: PoolStatus, waiting_bytes: Option<u64>, digest: Option<String>) -> Self {
        let [hot, warm, queued, cold] = status.starts;
        Self {
            size: status.size,
            hot: status.hot,
            paused: status.paused,
            making: status.making,
            waiting_bytes,
            digest,
            starts: Starts { hot, warm, queued, cold },
            last_error: status.last_error,
            preload: Preload {
                memory_bytes: status.preload.memory,
                complaints: status.preload.complaints,
            },
        }
    }
}
