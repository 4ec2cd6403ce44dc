//! The lines of a cell that its client has not read yet. They count as memory of the client, and there is room for no more of them
//! than it can have.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use isolator_pool::lock::lock;
use tokio_util::sync::CancellationToken;

use crate::calls::budget::Share;

/// The lines of a cell on their way to its client; cheap to clone.
#[derive(Clone)]
pub(super) struct Outbox {
    queue: Arc<Mutex<Queue>>,
    /// Cancelled when no one reads the lines anymore: the client is gone, or has read too little of them.
    abandoned: CancellationToken,
    /// Cancelled when there is something to read, or an end.
    begun: CancellationToken,
}

struct Queue {
    lines: VecDeque<Bytes>,
    share: Share,
    bytes: usize,
    end: Option<End>,
    reader: Option<Waker>,
    is_too_much: bool,
}

/// How the lines end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All have come.
    Complete,
    /// The connection breaks, as these clients expect it when the sandbox has ended.
    Broken,
}

impl Outbox {
    /// An empty one, whose lines are taken from this share.
    pub(super) fn new(share: Share) -> Self {
        let queue = Queue {
            lines: VecDeque::new(),
            share,
            bytes: 0,
            end: None,
            reader: None,
            is_too_much: false,
        };
        Self {
            queue: Arc::new(Mutex::new(queue)),
            abandoned: CancellationToken::new(),
            begun: CancellationToken::new(),
        }
    }

    /// Adds the first line, which alone is no reason to answer.
    pub(super) fn prepare(&self, line: Bytes) {
        self.add(line);
    }

    /// Adds a line. If there is no room for it, it is lost, and the outbox is abandoned.
    pub(super) fn push(&self, line: Bytes) {
        self.add(line);
        self.begun.cancel();
    }

    fn add(&self, line: Bytes) {
        let mut queue = lock(&self.queue);
        if queue.is_too_much || queue.end.is_some() {
            return;
        }
        if !queue.share.grow(line.len()) {
            queue.is_too_much = true;
            drop(queue);
            self.abandoned.cancel();
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        queue.wake();
    }

    /// Adds the last lines, for which there is always room, and ends it.
    pub(super) fn finish(&self, last: impl IntoIterator<Item = Bytes>, end: End) {
        let mut queue = lock(&self.queue);
        for line in last {
            queue.bytes += line.len();
            queue.lines.push_back(line);
        }
        let bytes = queue.bytes;
        queue.share.replace(bytes);
        queue.end.get_or_insert(end);
        queue.wake();
        drop(queue);
        self.begun.cancel();
    }

    /// Waits until there is something to read.
    pub(super) async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Waits until no one reads the lines anymore.
    pub(super) async fn abandoned(&self) {
        self.abandoned.cancelled().await;
    }

    /// Whether lines were lost because the client has read too little.
    pub(super) fn is_too_much(&self) -> bool {
        lock(&self.queue).is_too_much
    }

    /// The body of the answer.
    pub(super) fn into_body(self) -> axum::body::Body {
        axum::body::Body::new(Lines(self))
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// A body with the lines. When it is dropped, the outbox is abandoned.
struct Lines(Outbox);

impl Body for Lines {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut queue = lock(&self.0.queue);
        if let Some(line) = queue.lines.pop_front() {
            queue.bytes -= line.len();
            let bytes = queue.bytes;
            queue.share.replace(bytes);
            return Poll::Ready(Some(Ok(Frame::data(line))));
        }
        match queue.end {
            Some(End::Complete) => Poll::Ready(None),
            Some(End::Broken) => {
                Poll::Ready(Some(Err(io::Error::other("the sandbox has ended meanwhile"))))
            }
            None => {
                queue.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.lines.clear();
        queue.bytes = 0;
        queue.share.replace(0);
        queue.end.get_or_insert(End::Broken);
        drop(queue);
        self.0.abandoned.cancel();
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use futures_util::FutureExt as _;
    use isolator_pool::pool::admission::Client;

    use super::*;
    use crate::calls::budget::Budget;

    fn outbox(budget: &Budget) -> Outbox {
        Outbox::new(budget.share(&Client::named("a")))
    }

    #[tokio::test]
    async fn lines_that_are_not_read_are_bounded_and_given_back() {
        let budget = Budget::new(10, 10);
        let outbox = outbox(&budget);
        let body = outbox.clone().into_body();
        outbox.push(Bytes::from_static(b"12345"));
        outbox.push(Bytes::from_static(b"67890"));
        assert!(outbox.abandoned().now_or_never().is_none());
        outbox.push(Bytes::from_static(b"!"));
        assert!(outbox.is_too_much() && outbox.abandoned().now_or_never().is_some());
        outbox.finish([Bytes::from_static(b"end")], End::Complete);
        assert_eq!(to_bytes(body, 100).await.unwrap(), "1234567890end");
        let mut other = budget.share(&Client::named("a"));
        assert!(other.grow(10), "all was given back");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_abandons_its_lines() {
        let budget = Budget::new(10, 10);
        let outbox = outbox(&budget);
        let body = outbox.clone().into_body();
        outbox.prepare(Bytes::from_static(b"12345"));
        assert!(outbox.begun().now_or_never().is_none());
        drop(body);
        assert!(outbox.abandoned().now_or_never().is_some());
        outbox.push(Bytes::from_static(b"late"));
        assert!(budget.share(&Client::named("a")).grow(10), "nothing is held");
    }

    #[tokio::test]
    async fn the_connection_breaks_if_the_sandbox_has_ended() {
        let outbox = outbox(&Budget::new(10, 10));
        let body = outbox.clone().into_body();
        outbox.push(Bytes::from_static(b"1"));
        outbox.finish([], End::Broken);
        assert!(to_bytes(body, 100).await.is_err());
    }
}
