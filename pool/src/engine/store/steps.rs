//! Long work on threads that may block, and those who wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::error::StoreError;
use crate::engine::Progress;

/// Tells the one who waits how far the work is, and the work whether anybody waits.
pub(super) struct Steps {
    lines: UnboundedSender<String>,
    given_up: Arc<AtomicBool>,
}

impl Steps {
    /// Of work that nobody listens to.
    #[cfg(fuzzing)]
    pub(super) fn unheard() -> Self {
        Self { lines: unbounded_channel().0, given_up: Arc::default() }
    }

    /// Says what is done now. That nobody listens is no error.
    pub(super) fn say(&self, line: impl Into<String>) {
        let _ = self.lines.send(line.into());
    }

    /// Ends work that nobody waits for.
    pub(super) fn go_on(&self) -> Result<(), StoreError> {
        if self.given_up.load(Ordering::Relaxed) { Err(StoreError::GivenUp) } else { Ok(()) }
    }
}

/// Gives the work up when the one who waits goes away.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does work that blocks and passes on what it says. When this future is dropped, the work ends at its next
/// step.
pub(super) async fn work<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce(&Steps) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let given_up = Arc::new(AtomicBool::new(false));
    let waiting = Waiting(Arc::clone(&given_up));
    let (lines, mut said) = unbounded_channel();
    let steps = Steps { lines, given_up };
    let work = tokio::task::spawn_blocking(move || work(&steps));
    while let Some(line) = said.recv().await {
        progress(&line);
    }
    let done = work.await;
    drop(waiting);
    done.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        // The runtime shuts down.
        Err(_) => Err(StoreError::GivenUp),
    })
}

/// The same for work that is short or has nothing to say.
pub(super) async fn blocking<T: Send + 'static>(
    work_to_do: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    work(&|_| {}, move |_| work_to_do()).await
}
