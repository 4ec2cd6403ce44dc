//! Locks that are held for a moment.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock that is only ever held for a moment, and never across an `.await`. A panic elsewhere
/// leaves what it guards whole, because each change is one step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
