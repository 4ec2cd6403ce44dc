//! The thread that writes the audit log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;

use super::file::AuditFile;
use super::{Message, State};

/// How often a line that could not be written is tried again if calls are refused until it is written, and how often a file
/// that could not be opened.
const RETRY: Duration = Duration::from_millis(500);

/// How long the last lines are tried once the server uses another log, if no line may be lost. It is enough for a disk that is
/// slow or was full for a moment. A disk that stays full is why the operator has changed the path, and the thread must end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two lines in the server's log about lines that were lost.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Writer {
    file: AuditFile,
    state: Arc<State>,
    /// Whether no line may be lost while there is hope.
    refuses: bool,
    /// How long it tries lines of a log that is no longer used.
    pub(super) patience: Duration,
    /// Whether the last line could not be written. Then only a line shows that there is room again.
    has_failed: bool,
    /// Since when the log is known to have no users anymore.
    unused: Option<Instant>,
    /// Lines that were lost although none may be.
    given_up: u64,
    logged: Option<Instant>,
}

impl Writer {
    pub(super) fn new(file: AuditFile, state: Arc<State>, refuses: bool) -> Self {
        Self {
            file,
            state,
            refuses,
            patience: PATIENCE,
            has_failed: false,
            unused: None,
            given_up: 0,
            logged: None,
        }
    }

    /// Writes what comes until the end.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        while let Some(message) = self.receive(messages) {
            match message {
                Message::Line(line) => self.write_or_lose(&line),
                Message::Reopen => {
                    if self.look() {
                        tracing::info!("the audit log was opened again");
                    }
                }
                Message::Look => {
                    self.look();
                }
                Message::End(done) => {
                    // The receiver may be gone.
                    let _ = done.send(());
                    break;
                }
            }
        }
        if self.given_up > 0 {
            tracing::error!(
                path = %self.file.path().display(),
                lines = self.given_up,
                "this audit log is no longer used, and its last lines could not be written: they are lost"
            );
        }
    }

    /// The next message; `None` once all senders are gone.
    fn receive(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        // While calls are refused no line comes, so nothing else would show that the file can be opened again.
        while !self.has_failed && self.state.is_failing.load(Ordering::Relaxed) {
            match messages.recv_timeout(RETRY) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        messages.recv().ok()
    }

    fn write_or_lose(&mut self, line: &str) {
        self.state.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
        // Once a line was given up, those after it are, too: each attempt can take as long as the timeout of the lock.
        let is_written =
            self.given_up == 0 && (self.write(line) || (self.refuses && self.try_again(line)));
        if !is_written {
            self.state.lost.add(1);
            self.given_up += u64::from(self.refuses);
        }
        if self.state.waiting_lines.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.state.is_told_behind.store(false, Ordering::Relaxed);
        }
    }

    /// Tries to write a line until it is possible. The lines after it wait, and there are no more of them than calls that run.
    fn try_again(&mut self, line: &str) -> bool {
        while !self.is_out_of_patience() {
            std::thread::sleep(RETRY);
            if self.write(line) {
                return true;
            }
        }
        false
    }

    /// Whether the log has had no users for so long that its lines are given up.
    fn is_out_of_patience(&mut self) -> bool {
        // Once no other holder of the state is left, there are no calls.
        if Arc::strong_count(&self.state) > 1 {
            return false;
        }
        if self.unused.is_none() {
            // The server may stop before they are given up, so this is said at once.
            tracing::warn!(
                path = %self.file.path().display(),
                lines = self.state.waiting_lines.load(Ordering::Relaxed),
                "this audit log is no longer used, and its last lines can't be written: they are tried for {} more",
                humantime::format_duration(self.patience)
            );
        }
        self.unused.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// Opens the file again if it was moved, and returns whether that was possible.
    fn look(&mut self) -> bool {
        match self.file.reopen_if_moved() {
            Ok(()) => {
                if !self.has_failed {
                    self.recovered();
                }
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Writes a line, and returns whether that was possible.
    fn write(&mut self, line: &str) -> bool {
        match self.file.add(line) {
            Ok(()) => {
                self.state.written.add(1);
                self.has_failed = false;
                self.recovered();
                true
            }
            Err(error) => {
                // If its file can't even be opened, that will show it.
                self.has_failed = self.file.reopen_if_moved().is_ok();
                self.failed(&error);
                false
            }
        }
    }

    fn recovered(&mut self) {
        if self.state.is_failing.swap(false, Ordering::Relaxed) {
            *lock(&self.state.error) = None;
            self.logged = None;
            tracing::info!("the audit log can be written again");
        }
    }

    fn failed(&mut self, error: &std::io::Error) {
        let path = self.file.path().display();
        *lock(&self.state.error) = Some(format!("{path}: {error}"));
        self.state.is_failing.store(true, Ordering::Relaxed);
        // No call is refused for a log that is no longer used.
        if self.unused.is_some()
            || self.logged.is_some_and(|logged| logged.elapsed() < BETWEEN_LINES)
        {
            return;
        }
        self.logged = Some(Instant::now());
        let lost = self.state.lost.get();
        if self.refuses {
            tracing::error!(%path, %error, lost, "the audit log can't be written, so calls are refused");
        } else {
            tracing::error!(%path, %error, lost, "the audit log can't be written, so lines are lost");
        }
    }
}
