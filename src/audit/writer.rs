//! The thread that writes the audit log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::file::AuditFile;
use super::{Message, State};

/// How often a line that could not be written is tried again, if calls are refused until it is.
const RETRY: Duration = Duration::from_millis(500);

/// Shortest time between two lines in the server's log about lines that were lost.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// What the thread has.
#[derive(Debug)]
pub(super) struct Writer {
    file: AuditFile,
    state: Arc<State>,
    /// Whether no line may be lost while there is hope.
    refuses: bool,
    told: Option<Instant>,
}

impl Writer {
    pub(super) fn new(file: AuditFile, state: Arc<State>, refuses: bool) -> Self {
        Self { file, state, refuses, told: None }
    }

    /// Writes what comes until the end.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Line(line) => {
                    self.state.waiting.fetch_sub(line.len(), Ordering::Relaxed);
                    let is_written = self.write(&line) || (self.refuses && self.try_again(&line));
                    if !is_written {
                        self.state.lost.add(1);
                    }
                }
                Message::Reopen => self.reopen(),
                Message::End(done) => {
                    // Nobody may wait anymore.
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    /// Tries to write a line until it is possible. The lines after it wait, and there are no more of them than calls that run.
    fn try_again(&mut self, line: &str) -> bool {
        // Once nobody else knows the state, there are no calls.
        while Arc::strong_count(&self.state) > 1 {
            std::thread::sleep(RETRY);
            if self.write(line) {
                return true;
            }
        }
        false
    }

    fn reopen(&mut self) {
        match self.file.reopen_if_moved() {
            Ok(()) => tracing::info!("the audit log was opened again"),
            Err(error) => self.failed(&error),
        }
    }

    /// Writes a line; tells whether that was possible.
    fn write(&mut self, line: &str) -> bool {
        match self.file.add(line) {
            Ok(()) => {
                self.state.written.add(1);
                if self.state.is_failing.swap(false, Ordering::Relaxed) {
                    self.told = None;
                    tracing::info!("the audit log can be written again");
                }
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn failed(&mut self, error: &std::io::Error) {
        self.state.is_failing.store(true, Ordering::Relaxed);
        if self.told.is_some_and(|told| told.elapsed() < BETWEEN_LINES) {
            return;
        }
        self.told = Some(Instant::now());
        let lost = self.state.lost.get();
        if self.refuses {
            tracing::error!(%error, lost, "the audit log can't be written, so calls are refused; make room on its disk");
        } else {
            tracing::error!(%error, lost, "the audit log can't be written, so lines are lost; make room on its disk");
        }
    }
}
