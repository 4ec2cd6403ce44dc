//! The calls of each minute.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The calls of each minute, from the first call on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Minutes {
    first: Option<Duration>,
    /// Number of the minute of the last call, and how many it has.
    last: (u64, u64),
    busiest: u64,
}

impl Minutes {
    /// Adds a call. One that comes too late for its minute counts for the last one.
    pub fn add(&mut self, at: Duration) {
        let since = at.saturating_sub(*self.first.get_or_insert(at));
        let minute = since.as_secs() / MINUTE.as_secs();
        let minute = minute.max(self.last.0);
        let so_far = if self.last.0 == minute { self.last.1 } else { 0 };
        self.last = (minute, so_far + 1);
        self.busiest = self.busiest.max(so_far + 1);
    }

    /// The most calls in one of them.
    pub fn busiest(&self) -> u64 {
        self.busiest
    }
}
