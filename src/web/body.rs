//! The bodies of requests and answers, which are counted against a budget for as long as they are in memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};
use isolator_pool::lock::lock;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Refused;
use crate::calls::budget::Share;

/// Bytes of an answer that a connection is given at once.
const MAX_PIECE: usize = 64 << 10;

/// For the next frame of a body.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// For the whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the rest of a refused body is read.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// Receives the whole body of a request, at most `most` bytes, and adds it to the share.
///
/// # Errors
///
/// When it is too large or too slow, ends early, or there is no memory for it. The share is empty then.
pub(crate) async fn receive(
    headers: &HeaderMap,
    body: &mut Body,
    most: usize,
    share: &mut Share,
) -> Result<Bytes, Refused> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let announced = announced.and_then(|length| length.parse::<usize>().ok());
    let received = async {
        if announced.is_some_and(|length| length > most) {
            return Err(Refused::TooLarge(most));
        }
        collect(Pin::new(body), most, share).await
    };
    let received = tokio::time::timeout(BODY_TIMEOUT, received).await;
    let received = received.unwrap_or(Err(Refused::TooSlow));
    if received.is_err() {
        share.replace(0);
    }
    received
}

/// Discards the rest of a body that its request's handler has given up, before the answer is sent.
pub(crate) async fn discard_rest(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    let lent = Body::new(Lent(Arc::clone(&body)));
    let answer = next.run(Request::from_parts(parts, lent)).await;
    if let Some(body) = Arc::into_inner(body) {
        let mut body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
        discard(&mut body).await;
    }
    answer
}

/// A body that comes back when its reader is done with it.
struct Lent(Arc<Mutex<Body>>);

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *lock(&self.0)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).size_hint()
    }
}

/// Reads the rest of a refused body. A client that is still sending when the connection closes could not read why.
pub(crate) async fn discard(body: &mut Body) {
    let mut body = Pin::new(body);
    let all = async {
        while let Some(Ok(_)) = poll_fn(|context| body.as_mut().poll_frame(context)).await {}
    };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

async fn collect(
    mut body: Pin<&mut Body>,
    most: usize,
    share: &mut Share,
) -> Result<Bytes, Refused> {
    let mut bytes = Vec::new();
    loop {
        let piece = poll_fn(|context| body.as_mut().poll_frame(context));
        let piece = tokio::time::timeout(FRAME_TIMEOUT, piece).await;
        let Some(frame) = piece.map_err(|_| Refused::TooSlow)? else { return Ok(bytes.into()) };
        // A client that sends less than announced does not wait for an answer.
        let frame = frame.map_err(|error| Refused::BrokenBody(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(Refused::TooLarge(most));
        }
        if !share.grow(data.len()) {
            return Err(Refused::TooMuchInMemory);
        }
        bytes.extend_from_slice(&data);
    }
}

/// The body of an answer, which takes its share of memory until its client has read it.
pub(crate) struct Weighed {
    body: Body,
    /// The rest of a frame that is given to the connection piece by piece.
    rest: Bytes,
    share: Share,
    /// Held until the answer is sent, so that a server that stops waits for it.
    _answer: Option<TaskTrackerToken>,
}

impl Weighed {
    /// A body whose bytes the share has already.
    pub(crate) fn new(body: Body, share: Share, answer: Option<TaskTrackerToken>) -> Self {
        Self { body, rest: Bytes::new(), share, _answer: answer }
    }

    /// The next piece of the rest. Given a whole answer, the connection would take it out of the body, and so out
    /// of its share, long before the client has read it.
    fn next_piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(MAX_PIECE);
        Frame::data(self.rest.split_to(length))
    }
}

impl hyper::body::Body for Weighed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.next_piece())));
        }
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        let Some(frame) = polled else { return Poll::Ready(None) };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Err(frame) => frame,
            Ok(data) => {
                // Of a stream of events the size is not known before.
                self.share.at_least(data.len());
                self.rest = data;
                self.next_piece()
            }
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
