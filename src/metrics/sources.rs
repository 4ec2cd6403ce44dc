//! The sources of metrics: the parts of a server that count.

use std::sync::Arc;

use isolator_pool::pool::pools::Pools;

use super::operations::Operations;
use super::reloads::Reloads;
use crate::audit::Audit;
use crate::packages::Packages;
use crate::sessions::Sessions;
use crate::traces::Traces;

/// The number and size of things that are kept for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// The kind of things.
    pub kind: &'static str,
    pub count: usize,
    /// Their size in bytes, as it counts towards the limit.
    pub bytes: usize,
}

/// The sources of the numbers.
pub(crate) struct Sources {
    /// The kind of the engine.
    pub engine: &'static str,
    pub pools: Arc<Pools>,
    pub sessions: Sessions,
    pub operations: Arc<Operations>,
    pub packages: Packages,
    pub audit: Audit,
    /// The things that are kept for clients.
    pub held: Vec<Held>,
    pub traces: Traces,
    /// The attempts to load the configuration again.
    pub reloads: Arc<Reloads>,
}
