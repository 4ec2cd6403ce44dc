//! The signals that ask a program to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM, SIGINT or SIGHUP and returns its number.
///
/// # Errors
///
/// When the signals can't be listened for.
pub(super) async fn stop_signal() -> io::Result<i32> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let kind = tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = hang_up.recv() => SignalKind::hangup(),
    };
    Ok(kind.as_raw_value())
}
