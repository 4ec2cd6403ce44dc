//! The time by which a call must have its turn, whose answer can only be repeated elsewhere before it begins.

use std::time::Duration;

use tokio::time::Instant;

/// When a call must have its turn at the latest, for all of its waits together: that of a check of its syntax, of its policies, and of its
/// program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueDeadline {
    /// No wait lasts longer than this.
    until: Instant,
    /// From then on a refusal would come too late, so the call waits as long as any other.
    answer_begins: Instant,
}

impl QueueDeadline {
    /// For a call that comes now, and whose answer begins after this time: half of it is for waiting.
    pub(crate) fn of_answer_within(time: Duration) -> Self {
        let now = Instant::now();
        Self { until: now + time / 2, answer_begins: now + time }
    }

    /// The same if the answer may begin earlier. Three quarters of that time are for waiting.
    pub(crate) fn or_within(self, time: Duration) -> Self {
        let now = Instant::now();
        Self {
            until: self.until.min(now + time * 3 / 4),
            answer_begins: self.answer_begins.min(now + time),
        }
    }

    /// How long a wait that begins now can take; `None` if it is not limited.
    fn left(self) -> Option<Duration> {
        let now = Instant::now();
        (now < self.answer_begins).then(|| {
            // In whole milliseconds, because answers name it.
            let left = self.until.saturating_duration_since(now);
            Duration::from_millis(left.as_micros().div_ceil(1000).try_into().unwrap_or(u64::MAX))
        })
    }
}

/// The longest time for a wait that begins now, of a call that may have a deadline and whose request may have a limit of its own.
pub(super) fn longest_wait(
    deadline: Option<QueueDeadline>,
    own: Option<Duration>,
) -> Option<Duration> {
    deadline.and_then(QueueDeadline::left).into_iter().chain(own).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_waits_of_a_call_together_end_before_its_answer_begins() {
        let seconds = Duration::from_secs;
        let deadline = QueueDeadline::of_answer_within(seconds(8));
        assert_eq!(longest_wait(Some(deadline), None), Some(seconds(4)));
        assert_eq!(longest_wait(Some(deadline), Some(seconds(1))), Some(seconds(1)));
        assert_eq!(longest_wait(None, None), None);
        let follows = deadline.or_within(seconds(4));
        assert_eq!(longest_wait(Some(follows), None), Some(seconds(3)));
        // What the first wait has taken, the next one can't.
        tokio::time::advance(seconds(3)).await;
        assert_eq!(longest_wait(Some(deadline), None), Some(seconds(1)));
        assert_eq!(longest_wait(Some(follows), None), Some(Duration::ZERO));
        tokio::time::advance(seconds(2)).await;
        assert_eq!(longest_wait(Some(deadline), Some(seconds(9))), Some(Duration::ZERO));
        // The answer has begun, so a refusal could not be repeated elsewhere.
        assert_eq!(longest_wait(Some(follows), Some(seconds(9))), Some(seconds(9)));
        tokio::time::advance(seconds(3)).await;
        assert_eq!(longest_wait(Some(deadline), None), None);
    }
}
