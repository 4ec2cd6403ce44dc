//! Callbacks for the end of what a session was asked for.

use super::{EndReason, SessionError};

/// Callback for the end of a cell or of a rewinding, called even if the caller has gone away meanwhile.
pub type Done<T> = Box<dyn FnOnce(&Result<T, SessionError>) + Send>;

/// The callback of a call that has begun. If this is dropped before the call's end, the session has ended.
pub(super) struct Begun<T>(Option<Done<T>>);

impl<T> Begun<T> {
    pub(super) fn new(done: Done<T>) -> Self {
        Self(Some(done))
    }

    /// Calls it with the end of the call.
    pub(super) fn end(mut self, result: &Result<T, SessionError>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl<T> Drop for Begun<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(&Err(SessionError::Ended(EndReason::Closed)));
        }
    }
}
