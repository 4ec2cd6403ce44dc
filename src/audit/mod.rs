//! The audit log: one line of JSON for each call of a tool, with its client, its program and its end.
//!
//! A separate thread writes the lines, so no call waits for the disk. If lines can't be written, calls go on and lines are
//! lost, or calls are refused, as the operator has chosen.

mod file;
mod note;
mod writer;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use isolator_pool::counts::Count;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::sync::oneshot;

pub(crate) use self::note::{FileDigest, Note};

use self::file::AuditFile;
use self::writer::Writer;
use crate::config::{AuditConfig, OnFullDisk};

/// Lines that can wait to be written, and their bytes. A disk that writes ten lines a millisecond leaves none waiting.
const MAX_WAITING: usize = 4096;
const MAX_WAITING_BYTES: usize = 64 << 20;

/// How long the last lines can take when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The audit log of a server, if it has one; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audit(Option<Arc<Log>>);

/// The log as calls see it.
#[derive(Debug)]
struct Log {
    messages: SyncSender<Message>,
    state: Arc<State>,
    has_code: bool,
    refuses: bool,
}

/// The state that calls share with the thread that writes.
#[derive(Debug, Default)]
struct State {
    /// Lines that are not written yet, with the one that is being written.
    waiting_lines: AtomicUsize,
    /// Bytes of the lines that wait, without the one that is being written: a long line alone is no sign of a slow disk.
    waiting_bytes: AtomicUsize,
    /// Whether the last line could not be written, or the file could not be opened.
    is_failing: AtomicBool,
    /// The path and the error, if that is the reason. The disk is too slow otherwise.
    error: Mutex<Option<String>>,
    /// Whether the server's log says that too many lines wait. It is said once until all are written.
    is_told_behind: AtomicBool,
    written: Count,
    lost: Count,
}

/// A message to the thread that writes.
#[derive(Debug)]
enum Message {
    /// A line, with its end.
    Line(String),
    /// The file may have been moved away.
    Reopen,
    /// It may be possible to write again.
    Look,
    /// No more messages follow. The receiver of the answer waits until all is written.
    End(oneshot::Sender<()>),
}

/// Counts for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AuditCounts {
    /// Lines that were written.
    pub written: u64,
    /// Lines that could not be.
    pub lost: u64,
    /// Whether the last one could not be, or too many wait, so that calls are refused.
    pub is_failing: bool,
}

/// The problem with a file for an audit log, as far as it shows without creating the file.
pub(crate) fn problem(config: &AuditConfig) -> Option<String> {
    if !config.is_on() {
        return None;
    }
    let shown = config.path.display();
    match fs::metadata(&config.path) {
        Ok(found) => file::unsuitable(&found).map(|why| format!("{shown} can't be used: {why}")),
        Err(_) => {
            let folder = config.path.parent().filter(|it| !it.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            (!folder.is_dir()).then(|| format!("there is no folder {}", folder.display()))
        }
    }
}

impl Audit {
    /// Opens the log that is configured, if one is.
    pub(crate) fn open(config: &AuditConfig) -> anyhow::Result<Self> {
        if !config.is_on() {
            return Ok(Self(None));
        }
        let shown = config.path.display();
        let file = AuditFile::open(config)
            .with_context(|| format!("audit.path: {shown} can't be written"))?;
        let (messages, received) = sync_channel(MAX_WAITING);
        let state = Arc::new(State::default());
        let refuses = config.on_full_disk == OnFullDisk::Refuse;
        let writer = Writer::new(file, Arc::clone(&state), refuses);
        // It ends with the last sender, or at the message `End`.
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.run(&received))
            .context("can't start the thread of the audit log")?;
        let has_code = config.code;
        Ok(Self(Some(Arc::new(Log { messages, state, has_code, refuses }))))
    }

    /// Begins the line of a call. It is written when the note is dropped.
    pub(crate) fn begin(&self, client: &Client, tool: &str) -> Note {
        Note::new(self.0.clone(), client, tool)
    }

    /// Why no call can be served now, if that is so.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let log = self.0.as_ref()?;
        let is_failing = log.state.is_failing.load(Ordering::Relaxed);
        // A disk that hangs has no error. Calls that run then still need room for their lines.
        (log.refuses && (is_failing || log.state.is_behind())).then_some(
            "the server's audit log can't be written, and its operator wants no call to be served then: \
             nothing was run. Tell the operator, and try again later",
        )
    }

    /// Opens the file again, as after an operator has moved it away.
    pub(crate) fn reopen(&self) {
        if let Some(log) = &self.0 {
            // If the queue is full, the file is checked for each waiting line anyway.
            let _ = log.messages.try_send(Message::Reopen);
        }
    }

    /// Why lines can't be written, if that is so.
    pub(crate) fn failure(&self) -> Option<String> {
        let Log { state, refuses, .. } = &**self.0.as_ref()?;
        let is_failing =
            state.is_failing.load(Ordering::Relaxed) || (*refuses && state.is_behind());
        let error = || lock(&state.error).clone();
        is_failing.then(|| error().unwrap_or_else(|| "the disk is too slow".to_owned()))
    }

    /// Counts for operators; `None` if there is no log.
    pub(crate) fn counts(&self) -> Option<AuditCounts> {
        let state = &self.0.as_ref()?.state;
        Some(AuditCounts {
            written: state.written.get(),
            lost: state.lost.get(),
            is_failing: self.failure().is_some(),
        })
    }

    /// Waits until all lines are written, for a moment. Later lines are lost.
    pub(crate) async fn close(&self) {
        let Some(log) = &self.0 else { return };
        let (sender, ended) = oneshot::channel();
        let closed = async {
            let mut message = Message::End(sender);
            while let Err(TrySendError::Full(back)) = log.messages.try_send(message) {
                message = back;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // An error means that the thread has ended, with all lines written.
            let _ = ended.await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            let lines = log.state.waiting_lines.load(Ordering::Relaxed);
            tracing::error!(lines, "the last lines of the audit log could not be written in time");
        }
    }
}

impl Log {
    fn send(&self, line: String) {
        let (state, length) = (&self.state, line.len());
        state.waiting_lines.fetch_add(1, Ordering::Relaxed);
        let waiting = state.waiting_bytes.fetch_add(length, Ordering::Relaxed);
        let has_room = waiting + length <= MAX_WAITING_BYTES || waiting == 0;
        if !has_room || self.messages.try_send(Message::Line(line)).is_err() {
            state.waiting_lines.fetch_sub(1, Ordering::Relaxed);
            state.waiting_bytes.fetch_sub(length, Ordering::Relaxed);
            state.lost.add(1);
            if !state.is_failing.swap(true, Ordering::Relaxed) {
                tracing::error!("the disk is too slow for the audit log, so lines are lost");
                // The last line may have been written just before that, and none comes if calls are refused now. If there is no
                // room for this either, there are lines to write.
                let _ = self.messages.try_send(Message::Look);
            }
        } else if self.refuses
            && state.is_behind()
            && !state.is_failing.load(Ordering::Relaxed)
            && !state.is_told_behind.swap(true, Ordering::Relaxed)
        {
            tracing::error!("the disk is too slow for the audit log, so calls are refused");
        }
    }
}

impl State {
    /// Whether half of the queue is full; the rest is for the lines of calls that run.
    fn is_behind(&self) -> bool {
        self.waiting_lines.load(Ordering::Relaxed) > MAX_WAITING / 2
            || self.waiting_bytes.load(Ordering::Relaxed) > MAX_WAITING_BYTES / 2
    }
}

#[cfg(test)]
mod tests;
