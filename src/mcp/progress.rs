//! Progress: sends what a program prints while it runs, to a caller that asked for it.
//!
//! A host that hears nothing gives up on a call after a minute or less, so it gets a notification even when the
//! program prints nothing.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::run::output::Watch;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::calls::Steps;

/// Shortest time between two notifications. Output meanwhile is sent with the next one.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of a program's output that are sent; the rest is in its result. Some hosts have their model read it.
const MAX_OUTPUT: usize = 64 * 1024;

/// Longest time without a notification.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// A caller that follows the progress of its call.
pub(crate) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    began: Instant,
    printed: Arc<Printed>,
}

/// What was printed and not sent yet.
#[derive(Default)]
struct Printed {
    bytes: Mutex<Vec<u8>>,
    /// Bytes that were printed so far.
    taken: AtomicUsize,
    more: Notify,
}

impl Progress {
    /// The progress of a call, if its caller gave a token.
    pub(crate) fn wanted(context: &RequestContext<RoleServer>) -> Option<Self> {
        Some(Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token()?,
            began: Instant::now(),
            printed: Arc::default(),
        })
    }

    /// What a run is given to pass on what its program prints.
    pub(crate) fn watch(&self) -> Watch {
        let printed = Arc::clone(&self.printed);
        Watch::new(move |_, bytes| {
            printed.add(bytes);
        })
    }

    /// What a call is given to pass on what is done before its program starts.
    pub(crate) fn steps(&self) -> Steps {
        let printed = Arc::clone(&self.printed);
        Arc::new(move |step| {
            if !step.is_empty() {
                printed.add(format!("{step}\n").as_bytes());
            }
        })
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
    /// Adds output, up to the limit.
    fn add(&self, bytes: &[u8]) {
        let before = self.taken.fetch_add(bytes.len(), Ordering::Relaxed);
        let told = &bytes[..bytes.len().min(MAX_OUTPUT.saturating_sub(before))];
        if !told.is_empty() {
            lock(&self.bytes).extend_from_slice(told);
            self.more.notify_one();
        }
    }

    /// Takes the output as text, except for an incomplete character at its end.
    fn take(&self) -> String {
        let mut bytes = lock(&self.bytes);
        let whole = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
        bytes.drain(..whole);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_split() {
        let printed = Printed::default();
        printed.add(b"a\xe2\x82");
        assert_eq!(printed.take(), "a");
        assert_eq!(printed.take(), "");
        printed.add(b"\xac\xffb");
        assert_eq!(printed.take(), "\u{20ac}\u{fffd}b");
    }

    #[test]
    fn messages_are_short_enough_for_models() {
        let printed = Printed::default();
        for _ in 0..3 {
            printed.add(&[b'x'; MAX_OUTPUT / 2 + 1]);
        }
        assert_eq!(printed.take().len(), MAX_OUTPUT);
    }
}
