//! Progress: sends what a program prints while it runs, to a caller that asked for it.
//!
//! A host that hears nothing gives up on a call after a minute or less, so it gets a notification even when the
//! program prints nothing.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::run::output::{Stream, Watch};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::calls::Steps;
use crate::calls::command::{Bytes, Piece};

/// Shortest time between two notifications. Output meanwhile is sent with the next one.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of a program's output that are sent; the rest is in its result. Some hosts have their model read it.
const MAX_OUTPUT: usize = 64 * 1024;

/// Longest time without a notification.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// A caller that follows the progress of its call.
pub(crate) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    began: Instant,
    printed: Arc<Printed>,
}

/// Output that was not sent yet.
struct Printed {
    kept: Mutex<Kept>,
    /// Bytes that were printed so far.
    taken: AtomicUsize,
    more: Notify,
}

/// The form in which output is sent.
enum Kept {
    /// Text for a model.
    Text(Vec<u8>),
    /// All of it for a command, as the pool limits it.
    Pieces(Vec<Piece>),
}

impl Progress {
    /// The progress of a call, if its caller gave a token.
    pub(crate) fn wanted(context: &RequestContext<RoleServer>, is_command: bool) -> Option<Self> {
        let kept = if is_command { Kept::Pieces(Vec::new()) } else { Kept::Text(Vec::new()) };
        Some(Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token()?,
            began: Instant::now(),
            printed: Arc::new(Printed::new(kept)),
        })
    }

    /// Receives the output of the program.
    pub(crate) fn watch(&self) -> Watch {
        let printed = Arc::clone(&self.printed);
        Watch::new(move |stream, bytes| printed.add_output(stream, bytes))
    }

    /// Receives the steps before the program starts.
    pub(crate) fn steps(&self) -> Steps {
        let printed = Arc::clone(&self.printed);
        Arc::new(move |step| printed.add_step(step))
    }

    /// Sends notifications to the caller, until it is dropped.
    pub(crate) async fn tell(&self) -> Infallible {
        loop {
            // After either, there is a notification to send.
            let _ = tokio::time::timeout(MAX_INTERVAL, self.printed.more.notified()).await;
            let text = self.printed.take();
            let seconds = self.began.elapsed().as_secs_f64();
            let mut progress = ProgressNotificationParam::new(self.token.clone(), seconds);
            if !text.is_empty() {
                progress = progress.with_message(text);
            }
            if let Err(error) = self.peer.notify_progress(progress).await {
                tracing::debug!(%error, "a progress notification could not be sent");
            }
            tokio::time::sleep(MIN_INTERVAL).await;
        }
    }
}

impl Printed {
    fn new(kept: Kept) -> Self {
        Self { kept: Mutex::new(kept), taken: AtomicUsize::new(0), more: Notify::new() }
    }

    fn add_output(&self, stream: Stream, bytes: &[u8]) {
        match &mut *lock(&self.kept) {
            Kept::Text(text) => self.add(text, bytes),
            Kept::Pieces(pieces) => {
                match (stream, pieces.last_mut()) {
                    (Stream::Stdout, Some(Piece::Stdout(Bytes(last))))
                    | (Stream::Stderr, Some(Piece::Stderr(Bytes(last)))) => {
                        last.extend_from_slice(bytes);
                    }
                    _ => pieces.push(Piece::output(stream, bytes)),
                }
                self.more.notify_one();
            }
        }
    }

    fn add_step(&self, step: &str) {
        match &mut *lock(&self.kept) {
            Kept::Text(text) if !step.is_empty() => self.add(text, format!("{step}\n").as_bytes()),
            Kept::Text(_) => {}
            Kept::Pieces(pieces) => {
                // Only the last one is shown.
                if matches!(pieces.last(), Some(Piece::Step(_))) {
                    pieces.pop();
                }
                pieces.push(Piece::Step(step.to_owned()));
                self.more.notify_one();
            }
        }
    }

    /// Adds to a text, up to the limit.
    fn add(&self, text: &mut Vec<u8>, bytes: &[u8]) {
        let before = self.taken.fetch_add(bytes.len(), Ordering::Relaxed);
        let sent = &bytes[..bytes.len().min(MAX_OUTPUT.saturating_sub(before))];
        if !sent.is_empty() {
            text.extend_from_slice(sent);
            self.more.notify_one();
        }
    }

    /// Takes the output: text except for an incomplete character at its end, or pieces as JSON.
    fn take(&self) -> String {
        match &mut *lock(&self.kept) {
            Kept::Text(bytes) => {
                let whole = match std::str::from_utf8(bytes) {
                    Err(error) if error.error_len().is_none() => error.valid_up_to(),
                    _ => bytes.len(),
                };
                let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
                bytes.drain(..whole);
                text
            }
            Kept::Pieces(pieces) if pieces.is_empty() => String::new(),
            Kept::Pieces(pieces) => {
                let text = serde_json::to_string(&std::mem::take(pieces));
                text.unwrap_or_else(|error| {
                    tracing::error!(%error, "output could not be written as JSON");
                    String::new()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_are_never_split() {
        let printed = Printed::new(Kept::Text(Vec::new()));
        printed.add_output(Stream::Stdout, b"a\xe2\x82");
        assert_eq!(printed.take(), "a");
        assert_eq!(printed.take(), "");
        printed.add_output(Stream::Stderr, b"\xac\xffb");
        assert_eq!(printed.take(), "\u{20ac}\u{fffd}b");
    }

    #[test]
    fn messages_are_short_enough_for_models() {
        let printed = Printed::new(Kept::Text(Vec::new()));
        for _ in 0..3 {
            printed.add_output(Stream::Stdout, &[b'x'; MAX_OUTPUT / 2 + 1]);
        }
        assert_eq!(printed.take().len(), MAX_OUTPUT);
    }

    #[test]
    fn a_command_gets_all_output_by_stream_and_the_last_step() {
        let printed = Printed::new(Kept::Pieces(Vec::new()));
        for step in ["one", "two", ""] {
            printed.add_step(step);
        }
        printed.add_output(Stream::Stdout, b"a");
        printed.add_output(Stream::Stdout, &[0xff; 2 * MAX_OUTPUT]);
        printed.add_output(Stream::Stderr, b"b");
        let pieces: Vec<Piece> = serde_json::from_str(&printed.take()).unwrap();
        let [Piece::Step(step), Piece::Stdout(Bytes(out)), Piece::Stderr(_)] = &pieces[..] else {
            panic!("{pieces:?}");
        };
        assert_eq!((step.as_str(), out.len()), ("", 1 + 2 * MAX_OUTPUT));
        assert_eq!((printed.take(), json!(pieces[0])), (String::new(), json!({ "step": "" })));
    }
}
