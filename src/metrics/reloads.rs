//! The attempts to load the configuration again.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use isolator_pool::lock::lock;

/// The last failed and the last successful attempt. The one at the start was successful, or there would be no server.
#[derive(Debug)]
pub(crate) struct Reloads(Mutex<Last>);

#[derive(Debug)]
struct Last {
    failure: Option<FailedReload>,
    success: SystemTime,
}

/// An attempt that failed.
#[derive(Debug, Clone)]
pub(crate) struct FailedReload {
    pub at: SystemTime,
    pub error: String,
}

impl Default for Reloads {
    fn default() -> Self {
        Self(Mutex::new(Last { failure: None, success: SystemTime::now() }))
    }
}

impl Reloads {
    /// Records an attempt.
    pub(crate) fn ended<T, E: Display>(&self, ended: &Result<T, E>) {
        let (mut last, at) = (lock(&self.0), SystemTime::now());
        match ended {
            Ok(_) => *last = Last { failure: None, success: at },
            Err(error) => last.failure = Some(FailedReload { at, error: error.to_string() }),
        }
    }

    /// The last attempt, if it failed.
    pub(crate) fn failure(&self) -> Option<FailedReload> {
        lock(&self.0).failure.clone()
    }

    /// The time of the last success, in seconds since 1970.
    pub(crate) fn last_success(&self) -> f64 {
        let success = lock(&self.0).success;
        success.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}
