//! Who is told the end of what a session was asked for.

use super::{EndReason, SessionError};

/// What is to be done with the end of a cell or of a rewinding, also if the caller has gone away meanwhile.
pub type Done<T> = Box<dyn FnOnce(&Result<T, SessionError>) + Send>;

/// What has begun, and has to be told its end: if it is dropped before, the session has ended.
pub(super) struct Begun<T>(Option<Done<T>>);

impl<T> Begun<T> {
    pub(super) fn new(done: Done<T>) -> Self {
        Self(Some(done))
    }

    /// It has ended.
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

/// What a command is answered, and the reason if the session is gone.
pub(super) fn told_apart<T>(
    done: Result<Result<T, SessionError>, EndReason>,
) -> (Result<T, SessionError>, Result<(), EndReason>) {
    match done {
        Ok(answered) => (answered, Ok(())),
        Err(reason) => (Err(SessionError::Ended(reason.clone())), Err(reason)),
    }
}
