//! The schedule for importing modules ahead in a pool's sandboxes.
//!
//! Importing pandas keeps a core busy for as long as making many sandboxes does. So it is done in one
//! sandbox at a time, and only while no request comes, unless a request has just used some.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::sandbox::activity::ActivityGate;

/// Sandboxes of a pool in which modules are imported at the same time.
const PARALLEL_LOADS: usize = 1;

/// Decides when a sandbox of a pool may import its modules.
#[derive(Debug)]
pub(super) struct PreloadSchedule {
    loads: Semaphore,
    /// Requests that wanted modules. Each may have been served by the only sandbox that has them, so for
    /// each one sandbox is loaded without waiting for an idle moment.
    credit: AtomicUsize,
    /// The most credit that is of use: one for each sandbox of the pool.
    max_credit: AtomicUsize,
}

impl PreloadSchedule {
    /// The schedule of a pool of this size.
    pub(super) fn new(pool_size: usize) -> Self {
        Self {
            loads: Semaphore::new(PARALLEL_LOADS),
            credit: AtomicUsize::new(0),
            max_credit: AtomicUsize::new(pool_size),
        }
    }

    /// The pool has another size from now on.
    pub(super) fn resize(&self, pool_size: usize) {
        self.max_credit.store(pool_size, Ordering::Relaxed);
    }

    /// A request wants the modules, and others like it may follow.
    pub(super) fn used(&self) {
        let most = self.max_credit.load(Ordering::Relaxed);
        let more = |credit: usize| (credit < most).then_some(credit + 1);
        // As many as there are sandboxes is enough.
        let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Permission to import modules now, if it is given. It uses up credit if there is some.
    pub(super) fn may_load(&self, activity: &ActivityGate) -> Option<SemaphorePermit<'_>> {
        let load = self.loads.try_acquire().ok()?;
        let less = |credit: usize| credit.checked_sub(1);
        let has_credit = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        (has_credit.is_ok() || activity.until_calm().is_none()).then_some(load)
    }

    /// Whether modules are being imported in as many sandboxes as may at the same time.
    pub(super) fn is_busy(&self) -> bool {
        self.loads.available_permits() == 0
    }

    /// How long to wait before modules may be imported; `None` if they may be now.
    pub(super) fn wait(&self, activity: &ActivityGate) -> Option<Duration> {
        if self.credit.load(Ordering::Relaxed) > 0 { None } else { activity.until_calm() }
    }
}
