//! Texts and times as they are written in data.

use std::time::Duration;

/// Bytes as text; each that is not UTF-8 becomes a replacement character.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Milliseconds to the microsecond.
pub(crate) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
