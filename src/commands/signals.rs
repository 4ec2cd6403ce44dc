//! The signals that ask a program to stop.

use std::io;

use isolator_runner::inherited;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM, SIGINT and SIGHUP from now on. The returned future waits for one of them and returns its
/// number. The last two stay ignored if they are, as `nohup` asks for.
///
/// # Errors
///
/// When the signals can't be listened for.
pub(super) fn stop_signal() -> io::Result<impl Future<Output = i32>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = unless_ignored(SignalKind::interrupt())?;
    let mut hang_up = unless_ignored(SignalKind::hangup())?;
    Ok(async move {
        let kind = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            () = received(&mut interrupt) => SignalKind::interrupt(),
            () = received(&mut hang_up) => SignalKind::hangup(),
        };
        kind.as_raw_value()
    })
}

fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    if inherited::is_ignored(kind.as_raw_value()) { Ok(None) } else { signal(kind).map(Some) }
}

/// Waits for a signal; for ever if it is ignored.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
