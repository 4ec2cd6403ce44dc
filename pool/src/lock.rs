//! Locking a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex that is held only briefly, and never across an `.await`. A poisoned lock is fine: each
/// change is one step, so a panic elsewhere leaves the data consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
