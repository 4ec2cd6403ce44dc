//! The notice that a server is about to stop: load balancers send it no more clients, and calls are still served.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

/// The notice of a server; cheap to clone. It can't be taken back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notice(Arc<OnceLock<Instant>>);

impl Notice {
    /// Gives it, if it was not given before.
    pub(crate) fn give(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Whether it was given.
    pub(crate) fn is_given(&self) -> bool {
        self.0.get().is_some()
    }

    /// How much is left of the time for which calls are served after it.
    pub(crate) fn left(&self, time: Duration) -> Duration {
        time.saturating_sub(self.0.get().map(Instant::elapsed).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_begins_with_the_first_notice() {
        let notice = Notice::default();
        let time = Duration::from_secs(5);
        assert_eq!((notice.is_given(), notice.left(time)), (false, time));
        notice.give();
        tokio::time::sleep(Duration::from_secs(3)).await;
        notice.clone().give();
        assert_eq!((notice.is_given(), notice.left(time)), (true, Duration::from_secs(2)));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(notice.left(time), Duration::ZERO);
    }
}
