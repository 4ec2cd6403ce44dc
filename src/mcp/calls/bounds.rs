//! How much calls can have and leave, as the configuration says.

use std::time::Duration;

use super::Clients;
use crate::config::{Config, ResultsConfig};
use crate::result::handles::Capacity;
use crate::result::kept;

/// Bytes of results that are kept, unless the operator lets a single run keep more.
const MAX_KEPT: usize = 64 << 20;

/// How much of everything calls can have and leave.
pub(super) struct Bounds {
    /// Bytes of the requests that are served: of all clients, and of one.
    pub in_flight: (usize, usize),
    /// How much of results is kept, and for how long.
    pub kept: (Capacity, Duration),
    /// After how long runs are detached, how much of them is kept, and for how long.
    pub detached: (Duration, Capacity, Duration),
}

impl Bounds {
    /// Those of a configuration.
    pub(super) fn of(config: &Config, clients: Clients) -> Self {
        let of_one = |all: usize| match clients {
            Clients::One => all,
            Clients::Several => all / 2,
        };
        let in_flight = config.requests.max_in_flight.as_usize();
        let ResultsConfig { files, output, keep_for, detach_after } = config.results.clone();
        // Whatever one run can keep fits, for every client.
        let of_run = files.as_usize().saturating_add(2 * output.as_usize() + kept::MAX_NAMES);
        let all = MAX_KEPT.max(of_run.saturating_mul(2));
        let kept = Capacity { all, of_one: of_one(all) };
        // An answer has its output twice, as text and as data, and its pictures in base64.
        let answers = Capacity { all: 2 * kept.all, of_one: 2 * kept.of_one };
        let keep_handles_for = keep_for.saturating_add(config.longest_call());
        Self {
            in_flight: (in_flight, of_one(in_flight)),
            kept: (kept, keep_for),
            detached: (detach_after, answers, keep_handles_for),
        }
    }
}
