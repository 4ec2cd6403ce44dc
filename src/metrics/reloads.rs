//! What became of the attempts to load the configuration.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use isolator_pool::lock::lock;

/// The last attempts. The one at the start has succeeded, or there would be no server.
#[derive(Debug)]
pub(crate) struct Reloads(Mutex<Last>);

#[derive(Debug, Clone, Copy)]
struct Last {
    is_successful: bool,
    success: SystemTime,
}

impl Default for Reloads {
    fn default() -> Self {
        Self(Mutex::new(Last { is_successful: true, success: SystemTime::now() }))
    }
}

impl Reloads {
    /// Notes an attempt.
    pub(crate) fn ended(&self, is_successful: bool) {
        let mut last = lock(&self.0);
        last.is_successful = is_successful;
        if is_successful {
            last.success = SystemTime::now();
        }
    }

    /// Whether the last one succeeded.
    pub(crate) fn is_last_successful(&self) -> bool {
        lock(&self.0).is_successful
    }

    /// When one last succeeded, in seconds since 1970.
    pub(crate) fn last_success(&self) -> f64 {
        let success = lock(&self.0).success;
        success.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}
