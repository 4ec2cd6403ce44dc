//! Admission: how many requests run at once, and how many may wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bounds of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests that run at the same time.
    pub running: usize,
    /// Requests that may wait for one of those to end.
    pub queue: usize,
    /// Longest wait.
    pub wait: Duration,
}

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The queue is full.
    #[error("{running} requests are running and {queue} are waiting: try again in a moment")]
    QueueFull {
        /// Requests that run.
        running: usize,
        /// Requests that wait.
        queue: usize,
    },
    /// The request waited as long as it may.
    #[error("{running} requests are running and none ended within {wait:?}: try again later")]
    WaitedTooLong {
        /// Requests that run.
        running: usize,
        /// How long the request waited.
        wait: Duration,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

/// The gate in front of the pools.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: AdmissionLimits,
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The right to run; given back when dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    _slot: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(limits: AdmissionLimits) -> Self {
        let slots = Arc::new(Semaphore::new(limits.running));
        Self { limits, slots, waiting: AtomicUsize::new(0) }
    }

    /// Waits for a slot, in order of arrival. Dropping the future leaves the queue.
    pub(crate) async fn enter(&self) -> Result<Admitted, AdmissionError> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(Admitted { _slot: slot });
        }
        let _place = self.queue()?;
        let slot = Arc::clone(&self.slots).acquire_owned();
        match tokio::time::timeout(self.limits.wait, slot).await {
            Ok(Ok(slot)) => Ok(Admitted { _slot: slot }),
            Ok(Err(_)) => Err(AdmissionError::Closed),
            Err(_) => Err(AdmissionError::WaitedTooLong {
                running: self.limits.running,
                wait: self.limits.wait,
            }),
        }
    }

    fn queue(&self) -> Result<Place<'_>, AdmissionError> {
        let place = Place(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.limits.queue {
            return Ok(place);
        }
        if self.slots.is_closed() {
            return Err(AdmissionError::Closed);
        }
        Err(AdmissionError::QueueFull { running: self.limits.running, queue: self.limits.queue })
    }

    pub(crate) fn running(&self) -> usize {
        self.limits.running - self.slots.available_permits()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Refuses everybody from now on.
    pub(crate) fn close(&self) {
        self.slots.close();
    }
}

/// A place in the queue. It is counted from before it exists until it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(running: usize, queue: usize) -> Arc<Admission> {
        let wait = Duration::from_secs(5);
        Arc::new(Admission::new(AdmissionLimits { running, queue, wait }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
        let admission = admission(1, 1);
        let running = admission.enter().await.unwrap();
        let waiting = tokio::task::spawn_blocking(|| ()); // keeps the runtime honest
        waiting.await.unwrap();
        let mut second = Box::pin(admission.enter());
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(matches!(admission.enter().await, Err(AdmissionError::QueueFull { .. })));
        assert!(matches!(second.await, Err(AdmissionError::WaitedTooLong { .. })));
        assert_eq!(admission.waiting(), 0);
        drop(running);
        assert!(admission.enter().await.is_ok());
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_frees_its_place() {
        let admission = admission(1, 1);
        let _running = admission.enter().await.unwrap();
        {
            let mut waiter = Box::pin(admission.enter());
            assert!(futures_util::poll!(&mut waiter).is_pending());
            assert_eq!(admission.waiting(), 1);
        }
        assert_eq!(admission.waiting(), 0);
    }

    #[tokio::test]
    async fn closing_turns_away_those_who_wait_and_those_who_come() {
        let admission = admission(1, 1);
        let _running = admission.enter().await.unwrap();
        let mut waiter = Box::pin(admission.enter());
        assert!(futures_util::poll!(&mut waiter).is_pending());
        admission.close();
        assert!(matches!(waiter.await, Err(AdmissionError::Closed)));
        assert!(matches!(admission.enter().await, Err(AdmissionError::Closed)));
    }
}
