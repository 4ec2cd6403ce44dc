//! The signals that ask a program to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Listens for SIGTERM, SIGINT and SIGHUP from now on. The returned future waits for one of them and returns its
/// number.
///
/// # Errors
///
/// When the signals can't be listened for.
pub(super) fn stop_signal() -> io::Result<impl Future<Output = i32>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        let kind = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = hang_up.recv() => SignalKind::hangup(),
        };
        kind.as_raw_value()
    })
}
