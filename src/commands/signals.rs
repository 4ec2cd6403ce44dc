//! The signals that ask a program to stop.

use std::io;
use std::process::ExitCode;

use futures_util::FutureExt as _;
use isolator_runner::inherited;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Added to the number of a signal that ended a program, as shells do.
const SIGNALLED: i32 = 128;

/// The exit code after a signal to this process.
pub fn stopped_by(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX))
}

/// Listens for SIGTERM, SIGINT and SIGHUP from now on. The returned future waits for one of them and returns its
/// number. The last two stay ignored if they are, as `nohup` asks for.
///
/// # Errors
///
/// When the signals can't be listened for.
pub fn stop_signal() -> io::Result<impl Future<Output = i32>> {
    let mut interrupts = Interrupts::new()?;
    let end = end_signal()?;
    Ok(async move {
        tokio::select! {
            signal = end => signal,
            () = interrupts.next() => SignalKind::interrupt().as_raw_value(),
        }
    })
}

/// The same for SIGTERM and SIGHUP alone.
///
/// # Errors
///
/// When the signals can't be listened for.
pub(super) fn end_signal() -> io::Result<impl Future<Output = i32>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = unless_ignored(SignalKind::hangup())?;
    Ok(async move {
        let kind = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            () = received(&mut hang_up) => SignalKind::hangup(),
        };
        kind.as_raw_value()
    })
}

/// The same for SIGTERM and SIGINT alone, where SIGHUP means something else.
///
/// # Errors
///
/// When the signals can't be listened for.
pub(super) fn stop_signal_but_hang_up() -> io::Result<impl Future<Output = i32>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupts = Interrupts::new()?;
    Ok(async move {
        let kind = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            () = interrupts.next() => SignalKind::interrupt(),
        };
        kind.as_raw_value()
    })
}

/// SIGHUPs that come from now on. If the signal is ignored, none comes.
#[derive(Debug)]
pub(super) struct HangUps(Option<Signal>);

impl HangUps {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// When the signal can't be listened for.
    pub(super) fn new() -> io::Result<Self> {
        unless_ignored(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        received(&mut self.0).await;
    }
}

/// The signal that Ctrl-C sends. It is caught until this is dropped, and ignored afterwards.
#[derive(Debug)]
pub(super) struct Interrupts(Option<Signal>);

impl Interrupts {
    /// Listens from now on, unless SIGINT is ignored.
    ///
    /// # Errors
    ///
    /// When it can't be listened for.
    pub(super) fn new() -> io::Result<Self> {
        unless_ignored(SignalKind::interrupt()).map(Self)
    }

    /// Waits for one.
    pub(super) async fn next(&mut self) {
        let Self(signal) = self;
        received(signal).await;
    }

    /// Whether one has come. It is taken, so that it is not for what follows.
    pub(super) fn take(&mut self) -> bool {
        self.next().now_or_never().is_some()
    }
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
