//! Long jobs on threads that may block, with progress and cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::error::{Canceled, StoreError};
use crate::engine::Progress;

/// The handle of a running job, with which it reports progress and checks whether it was canceled.
pub(super) struct BlockingJob {
    lines: UnboundedSender<String>,
    canceled: Arc<AtomicBool>,
}

impl BlockingJob {
    /// A job without a reader of its progress.
    #[cfg(fuzzing)]
    pub(super) fn silent() -> Self {
        Self { lines: unbounded_channel().0, canceled: Arc::default() }
    }

    /// Reports a line of progress, which may have no reader.
    pub(super) fn report(&self, line: impl Into<String>) {
        let _ = self.lines.send(line.into());
    }

    /// Fails if the job was canceled.
    pub(super) fn check_canceled(&self) -> Result<(), Canceled> {
        if self.canceled.load(Ordering::Relaxed) { Err(Canceled) } else { Ok(()) }
    }
}

/// Cancels the job when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a job on a thread that may block, and passes on its progress. When this future is dropped, the job ends
/// at its next check.
pub(super) async fn run_job<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce(&BlockingJob) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let canceled = Arc::new(AtomicBool::new(false));
    let cancel_on_drop = CancelOnDrop(Arc::clone(&canceled));
    let (lines, mut said) = unbounded_channel();
    let job = BlockingJob { lines, canceled };
    let running = tokio::task::spawn_blocking(move || work(&job));
    while let Some(line) = said.recv().await {
        progress(&line);
    }
    let done = running.await;
    drop(cancel_on_drop);
    done.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        // The runtime is shutting down.
        Err(_) => Err(Canceled.into()),
    })
}

/// The same for jobs that are short or report no progress.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    run_job(&|_| {}, move |_| work()).await
}
