//! Calls that wait for their turn in a session, whose number is bounded.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of calls of one session that wait.
pub(super) const MAX_WAITING: usize = 8;

/// A call that waits for its turn.
pub(super) struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    /// `None` if too many wait already.
    pub(super) fn begin(waiting: &'a AtomicUsize) -> Option<Self> {
        let waits = Self(waiting);
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        (before < MAX_WAITING).then_some(waits)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
