//! The file descriptors of this process: how many it can have, and how many of them sandboxes leave for connections.
//!
//! Each connection takes one, and a sandbox of the embedded engine several. If connections took the last one, no sandbox
//! could be made and no health check answered.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use crate::config::{Config, Language};

/// For everything that exists once: standard streams, event queues, signals, launchers, calls to the engine.
const OWN: usize = 64;

/// For each sandbox. One of the embedded engine takes five, with what is open while it is made or runs.
const OF_SANDBOX: usize = 6;

/// For the listener for operators and its connections, if there is one.
const OF_OPERATORS: usize = 40;

/// Connections that are served in any case, or no client could call.
const LEAST_CONNECTIONS: usize = 16;

/// The use of the descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The limit of this process.
    pub(crate) limit: usize,
    /// The number that all sandboxes of the configuration and the process itself need.
    pub(crate) needed: usize,
    /// The number left for connections, at most the configured one.
    pub(crate) connections: usize,
}

impl Plan {
    /// The plan for a configuration, in this process.
    pub(crate) fn new(config: &Config) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let of_pool = |language: &Arc<Language>| language.pool.size.most();
        let waiting: usize = config.languages.values().map(of_pool).sum();
        let of_requests = config.requests.max_running + config.requests.refills;
        let sandboxes = waiting + of_requests + config.sessions.max;
        let operators = config.admin.address.map_or(0, |_| OF_OPERATORS);
        Self::within(limit, sandboxes, operators, config.http.max_connections)
    }

    fn within(limit: usize, sandboxes: usize, operators: usize, most: usize) -> Self {
        let needed = sandboxes.saturating_mul(OF_SANDBOX).saturating_add(OWN + operators);
        let left = limit.saturating_sub(needed).max(LEAST_CONNECTIONS);
        Self { limit, needed, connections: left.min(most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_the_descriptors_that_sandboxes_leave() {
        for (limit, sandboxes, connections) in [
            (1024, 16, 864),
            (256, 16, 96),
            // Some are served in any case.
            (256, 100, 16),
            (1 << 20, 16, 1024),
            (usize::MAX, usize::MAX, 16),
        ] {
            let plan = Plan::within(limit, sandboxes, 0, 1024);
            assert_eq!(plan.connections, connections, "{limit} {sandboxes}");
        }
        assert_eq!(Plan::within(1 << 20, 16, 0, 8).connections, 8, "no more than configured");
        assert_eq!(Plan::within(1024, 16, OF_OPERATORS, 1024).connections, 824);
    }
}
