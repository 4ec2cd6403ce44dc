//! `isolator://pool`: the current state of the server.

use std::collections::BTreeMap;

use isolator_pool::pool::PoolStatus;
use isolator_pool::pool::pools::Pools;
use serde::Serialize;

use crate::packages::{PackageCounts, Packages, Stored};
use crate::sessions::{SessionCounts, Sessions};

#[derive(Serialize)]
pub(super) struct Status<'a> {
    /// Requests that run, of all languages and clients: programs, cells, and sessions that are being opened.
    running: usize,
    /// Those that wait for their turn.
    waiting: usize,
    /// Used sandboxes that are not removed yet.
    leaving: usize,
    /// Of all clients.
    sessions: SessionCounts,
    packages: OfPackages,
    pools: BTreeMap<&'a str, OnePool>,
}

#[derive(Serialize)]
struct OfPackages {
    #[serde(flatten)]
    counts: PackageCounts,
    #[serde(flatten)]
    stored: Option<Stored>,
}

#[derive(Serialize)]
struct OnePool {
    size: usize,
    hot: usize,
    paused: usize,
    making: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Of the image that had the same name before, if it was replaced since the server began.
    #[serde(skip_serializing_if = "Option::is_none")]
    former_digest: Option<String>,
    /// Sandboxes that wait and still have a former image.
    outdated: usize,
    /// Programs and sessions since the server began, by how they got their sandbox.
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

/// A client can't see from this what the programs of others import.
pub(super) async fn of<'a>(
    pools: &'a Pools,
    sessions: &Sessions,
    packages: &Packages,
) -> Status<'a> {
    let (running, waiting) = pools.load();
    let leaving = pools.leaving();
    let one = |(name, status)| (name, OnePool::new(status, pools.image(name)));
    let pools = pools.status().into_iter().map(one).collect();
    let packages = OfPackages { counts: packages.counts(), stored: packages.stored().await };
    Status { running, waiting, leaving, sessions: sessions.counts(), packages, pools }
}

impl OnePool {
    fn new(status: PoolStatus, digest: Option<String>) -> Self {
        let [hot, warm, queued, cold] = status.starts;
        Self {
            size: status.size,
            hot: status.hot,
            paused: status.paused,
            making: status.making,
            digest,
            former_digest: status.former_image,
            outdated: status.outdated,
            starts: Starts { hot, warm, queued, cold },
            last_error: status.last_error,
            preload: Preload {
                memory_bytes: status.preload.memory,
                complaints: status.preload.complaints,
            },
        }
    }
}
