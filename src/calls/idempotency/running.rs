//! A call with a key that runs, and the callers that wait for its answer.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::KeyRefusal;

/// A kept answer of any kind.
pub(super) type AnyAnswer = Arc<dyn Any + Send + Sync>;

/// Maximum number of callers that wait for one answer.
const MAX_WAITING: usize = 16;

/// A call that runs; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Running {
    end: Arc<watch::Sender<Option<CallEnd>>>,
    waiting: Arc<watch::Sender<usize>>,
}

/// The end of a call.
#[derive(Debug, Clone)]
pub(super) enum CallEnd {
    /// It was answered, whether it has run or not.
    Answered(AnyAnswer),
    /// It was ended before.
    Ended,
}

/// A caller that waits. The call knows when the last one is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Running);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

impl Running {
    pub(super) fn new() -> Self {
        Self { end: Arc::new(watch::Sender::new(None)), waiting: Arc::default() }
    }

    /// Adds a caller.
    ///
    /// # Errors
    ///
    /// When too many wait already.
    pub(super) fn join(&self) -> Result<Waiting, KeyRefusal> {
        let joined = self.waiting.send_if_modified(|waiting| {
            let has_room = *waiting < MAX_WAITING;
            *waiting += usize::from(has_room);
            has_room
        });
        joined.then(|| Waiting(self.clone())).ok_or(KeyRefusal::TooManyWaiting(MAX_WAITING))
    }

    /// Tells the callers that wait.
    pub(super) fn end(&self, end: CallEnd) {
        self.end.send_replace(Some(end));
    }

    /// Waits until there was no caller for this time.
    pub(super) async fn abandoned(&self, grace: Duration) {
        let mut waiting = self.waiting.subscribe();
        loop {
            // The sender is in `self`, so no wait fails.
            let _ = waiting.wait_for(|waiting| *waiting == 0).await;
            let another = waiting.wait_for(|waiting| *waiting > 0);
            if tokio::time::timeout(grace, another).await.is_err() {
                return;
            }
        }
    }
}

impl Waiting {
    /// Waits for the end.
    pub(super) async fn end(&self) -> CallEnd {
        let mut end = self.0.end.subscribe();
        let end = end.wait_for(Option::is_some).await;
        end.ok().and_then(|end| end.clone()).unwrap_or(CallEnd::Ended)
    }
}
