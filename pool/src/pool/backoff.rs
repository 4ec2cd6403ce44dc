//! The pause of a pool after a sandbox could not be made.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Call;

/// First and longest pause after a sandbox could not be made.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The same after an image could not be built or pulled. An operator has to fix that, and a pool notices without a try when the
/// image is there.
const LONGEST_PAUSE_WITHOUT_IMAGE: Duration = Duration::from_secs(10 * 60);

/// After this long without a failure the next one counts as the first again. An image may take its whole time to fail in addition.
const RESET_AFTER: Duration = Duration::from_secs(60);

/// The recent failures of a pool.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Failures in a row, with less than [`RESET_AFTER`] between them.
    failures: u32,
    /// When the next sandbox may be made.
    until: Option<Instant>,
    last_error: Option<String>,
}

impl Backoff {
    /// Doubles the pause, unless the last failure was long ago. A success in between does not count:
    /// a sandbox that was made may fail at its next step. Returns whether this is news: the first failure, or another error. One with other
    /// numbers, such as those of a disk's free space, is the same.
    pub(super) fn failed(&mut self, error: String, is_without_image: bool) -> bool {
        let (longest, reset_after) = match is_without_image {
            true => (LONGEST_PAUSE_WITHOUT_IMAGE, Call::FetchImage.deadline() + RESET_AFTER),
            false => (LONGEST_PAUSE, RESET_AFTER),
        };
        let now = Instant::now();
        if self.until.is_some_and(|until| now > until + reset_after) {
            self.failures = 0;
        }
        let is_same = self.last_error.as_ref().is_some_and(|last| words(last).eq(words(&error)));
        let is_news = self.failures == 0 || !is_same;
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        self.until = Some(now + pause.min(longest));
        self.last_error = Some(error);
        is_news
    }

    /// A sandbox was made: the next one need not wait.
    pub(super) fn succeeded(&mut self) {
        let now = Instant::now();
        self.until = self.until.map(|until| until.min(now));
        self.last_error = None;
    }

    /// The rest of the pause, if any.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Why the last sandbox could not be made, if it could not.
    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

/// An error without its numbers, and without the units that sizes come in.
fn words(error: &str) -> impl Iterator<Item = &str> {
    let words = error.split(|c: char| c.is_ascii_digit() || c.is_whitespace());
    words.filter(|word| !["", "bytes", "KiB", "MiB", "GiB"].contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limits::ByteSize;

    #[tokio::test(start_paused = true)]
    async fn the_pause_doubles_up_to_a_bound_and_starts_again_after_a_minute_without_failures() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.remaining(), None);
        assert!(backoff.failed("no".to_owned(), false));
        assert_eq!(backoff.remaining(), Some(FIRST_PAUSE));
        assert!(!backoff.failed("no".to_owned(), false));
        assert!(backoff.failed("another".to_owned(), false));
        assert_eq!(backoff.remaining(), Some(FIRST_PAUSE * 4));
        for _ in 0..20 {
            backoff.failed("no".to_owned(), false);
        }
        assert_eq!(backoff.remaining(), Some(LONGEST_PAUSE));
        backoff.failed("no image".to_owned(), true);
        assert_eq!(backoff.remaining(), Some(LONGEST_PAUSE_WITHOUT_IMAGE));
        tokio::time::advance(LONGEST_PAUSE_WITHOUT_IMAGE + RESET_AFTER + FIRST_PAUSE).await;
        backoff.failed("again".to_owned(), false);
        assert_eq!(backoff.remaining(), Some(FIRST_PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_takes_minutes_to_fail_is_tried_more_and_more_seldom_and_is_news_once() {
        let mut backoff = Backoff::default();
        let mut longest = Duration::ZERO;
        for free in 0..20 {
            let error = format!("no space: {} free", ByteSize::mib(1020 + free));
            assert_eq!(backoff.failed(error, true), free == 0, "{free}");
            let pause = backoff.remaining().unwrap();
            assert!(pause > longest || pause == LONGEST_PAUSE_WITHOUT_IMAGE, "{pause:?}");
            longest = pause;
            tokio::time::advance(pause + Duration::from_secs(5 * 60)).await;
        }
        assert_eq!(longest, LONGEST_PAUSE_WITHOUT_IMAGE);
        assert!(backoff.failed("no space: the quota is used up".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_success_nothing_waits_and_the_next_pause_is_still_longer() {
        let mut backoff = Backoff::default();
        backoff.failed("no".to_owned(), false);
        backoff.succeeded();
        assert_eq!((backoff.remaining(), backoff.last_error()), (None, None));
        backoff.failed("again".to_owned(), false);
        assert_eq!(backoff.remaining(), Some(FIRST_PAUSE * 2));
    }
}
