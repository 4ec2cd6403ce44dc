//! What became of the attempts to load the configuration.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use isolator_pool::lock::lock;

/// The last attempts. The one at the start has succeeded, or there would be no server.
#[derive(Debug)]
pub(crate) struct Reloads(Mutex<Last>);

#[derive(Debug)]
struct Last {
    failure: Option<Failure>,
    success: SystemTime,
}

/// Why the last attempt failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// When that was.
    pub at: SystemTime,
    /// The error.
    pub error: String,
}

impl Default for Reloads {
    fn default() -> Self {
        Self(Mutex::new(Last { failure: None, success: SystemTime::now() }))
    }
}

impl Reloads {
    /// Notes an attempt.
    pub(crate) fn ended<T>(&self, ended: &Result<T, String>) {
        let (mut last, at) = (lock(&self.0), SystemTime::now());
        match ended {
            Ok(_) => *last = Last { failure: None, success: at },
            Err(error) => last.failure = Some(Failure { at, error: error.clone() }),
        }
    }

    /// Why the last one failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.0).failure.clone()
    }

    /// When one last succeeded, in seconds since 1970.
    pub(crate) fn last_success(&self) -> f64 {
        let success = lock(&self.0).success;
        success.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}
