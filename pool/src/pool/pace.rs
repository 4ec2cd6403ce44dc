//! The pace at which requests are served while others wait.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Number of the last requests that count, and the least that say anything.
const MOST: usize = 32;
const FEWEST: usize = 3;

/// The times at which the last requests were served while others waited. If none waits, the pace is that of the clients.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<Instant>);

impl Pace {
    /// A request was served, and others wait or not.
    pub(super) fn served(&mut self, is_busy: bool) {
        if !is_busy {
            self.0.clear();
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Instant::now());
    }

    /// Time to serve this number of requests; `None` if too few were served to say.
    pub(super) fn time_for(&self, requests: usize) -> Option<Duration> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let pauses = u32::try_from(self.0.len() - 1).ok().filter(|_| self.0.len() >= FEWEST)?;
        Some((*last - *first) / pauses * u32::try_from(requests).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pace_is_that_of_the_last_requests_while_others_wait() {
        let mut pace = Pace::default();
        for _ in 0..MOST {
            pace.served(true);
            tokio::time::advance(Duration::from_secs(100)).await;
        }
        for _ in 0..MOST {
            pace.served(true);
            tokio::time::advance(Duration::from_millis(250)).await;
        }
        assert_eq!(pace.time_for(8), Some(Duration::from_secs(2)));
        pace.served(false);
        assert_eq!(pace.time_for(8), None);
        for _ in 1..FEWEST {
            pace.served(true);
        }
        assert_eq!(pace.time_for(8), None);
    }
}
