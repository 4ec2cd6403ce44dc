//! Answers that are not silent for long. Proxies end connections on which nothing comes, and only what is sent to a client
//! shows [whether it is still there](crate::web::Side).
//!
//! An answer that takes its time becomes a stream of events, in which comments come until there is something to say.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use hyper::body::Frame;
use rmcp::model::{ErrorData, JsonRpcError, RequestId};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A comment, which every parser of events ignores.
const COMMENT: &[u8] = b":\n\n";

/// How an event without data begins, as rmcp writes it.
const NO_DATA: &[u8] = b"data: \n";

/// When the first comment comes after a client has closed its sending side; each next one takes twice as long. The first one
/// finds out whether the client is gone, and the next one fails then. Most answers are sent before.
const FIRST_PROBE: Duration = Duration::from_millis(100);

/// When the next comment is due.
pub(super) struct Pace {
    interval: Duration,
    /// Grows while it is found out whether a client is still there.
    next: Duration,
    timer: Pin<Box<Sleep>>,
    /// `None` once the client has closed its sending side.
    closed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Pace {
    /// A comment after each interval, and sooner once `closed` is cancelled.
    pub(super) fn new(interval: Duration, closed: &CancellationToken) -> Self {
        Self {
            interval,
            next: interval,
            timer: Box::pin(sleep(interval)),
            closed: Some(Box::pin(closed.clone().cancelled_owned())),
        }
    }

    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(closed) = &mut self.closed
            && closed.as_mut().poll(context).is_ready()
        {
            self.closed = None;
            self.next = FIRST_PROBE.min(self.interval);
            self.restart();
        }
        ready!(self.timer.as_mut().poll(context));
        self.next = (self.next * 2).min(self.interval);
        self.restart();
        Poll::Ready(())
    }

    /// Something was sent, which is as good as a comment.
    fn restart(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.next);
    }
}

/// An answer that is there before the first comment is due.
pub(super) async fn early(
    answer: &mut BoxFuture<'static, Response>,
    pace: &mut Pace,
) -> Option<Response> {
    poll_fn(|context| match answer.as_mut().poll(context) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => pace.poll_due(context).map(|()| None),
    })
    .await
}

/// The answer to a request, as a stream of events.
pub(super) struct Alive {
    source: Source,
    pace: Pace,
    /// Whether events without data are left out.
    is_without_empty: bool,
}

enum Source {
    /// Nothing was answered yet. The identifier is the request's.
    Waiting {
        answer: BoxFuture<'static, Response>,
        id: Option<RequestId>,
        is_first: bool,
    },
    /// The data of one event.
    Message {
        body: Body,
        is_begun: bool,
    },
    Events(Body),
    Ended,
}

impl Alive {
    /// Adds comments to a stream of events. Clients of a revision before 2025-11-25 can't read events without data; rmcp
    /// sends one as the first.
    pub(super) fn events(response: Response, pace: Pace, is_without_empty: bool) -> Response {
        let alive = |body| Self { source: Source::Events(body), pace, is_without_empty };
        response.map(|body| Body::new(alive(body)))
    }

    /// Begins to answer a request whose answer is not there yet. `id` is the request's.
    pub(super) fn late(
        answer: BoxFuture<'static, Response>,
        pace: Pace,
        id: Option<RequestId>,
        is_without_empty: bool,
    ) -> Response {
        let source = Source::Waiting { answer, id, is_first: true };
        let alive = Self { source, pace, is_without_empty };
        let headers = [
            (CONTENT_TYPE.as_str(), "text/event-stream"),
            (CACHE_CONTROL.as_str(), "no-cache"),
            // nginx would hold the comments back.
            ("x-accel-buffering", "no"),
        ];
        (headers, Body::new(alive)).into_response()
    }
}

/// An answer whose first event has come, or the first comment. Its head says how the call was served, if that event is its result.
pub(super) async fn begun(response: Response) -> Response {
    let (parts, mut rest) = response.into_parts();
    let mut held = VecDeque::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {
        // An event that has nothing is there at once.
        let is_begun = frame
            .as_ref()
            .map_or(true, |frame| frame.data_ref().is_some_and(|data| !data.starts_with(NO_DATA)));
        held.push_back(frame);
        if is_begun {
            break;
        }
    }
    Response::from_parts(parts, Body::new(Begun { held, rest }))
}

/// A body whose first frames have been read.
struct Begun {
    held: VecDeque<Result<Frame<Bytes>, axum::Error>>,
    rest: Body,
}

impl hyper::body::Body for Begun {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        match self.held.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.rest.is_end_stream()
    }
}

/// Whether an answer is a stream of events.
pub(super) fn is_events(response: &Response) -> bool {
    is_kind(response.headers(), "text/event-stream")
}

fn is_kind(headers: &HeaderMap, kind: &str) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.split(';').next()).is_some_and(|it| it.trim() == kind)
}

impl Source {
    /// The rest once a late answer is there. Its status has been sent, so an error is in its message.
    fn of(response: Response, id: Option<RequestId>) -> Self {
        if is_events(&response) {
            return Self::Events(response.into_body());
        }
        if is_kind(response.headers(), "application/json") {
            return Self::Message { body: response.into_body(), is_begun: false };
        }
        if response.status().is_success() {
            return Self::Ended;
        }
        let error = format!("the request failed with HTTP status {}", response.status());
        let error = JsonRpcError::new(id, ErrorData::internal_error(error, None));
        let body = serde_json::to_vec(&error).unwrap_or_default();
        Self::Message { body: body.into(), is_begun: false }
    }
}

type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

fn sent(bytes: &'static [u8]) -> Polled {
    Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(bytes)))))
}

impl hyper::body::Body for Alive {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let Self { source, pace, is_without_empty } = &mut *self;
        loop {
            match source {
                Source::Waiting { answer, id, is_first } => {
                    if std::mem::take(is_first) {
                        return sent(COMMENT);
                    }
                    match answer.as_mut().poll(context) {
                        Poll::Ready(response) => *source = Source::of(response, id.take()),
                        Poll::Pending => break,
                    }
                }
                Source::Message { is_begun, .. } if !*is_begun => {
                    *is_begun = true;
                    return sent(b"data: ");
                }
                Source::Message { body, .. } => {
                    let polled = ready!(Pin::new(body).poll_frame(context)?);
                    if let Some(frame) = polled {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    *source = Source::Ended;
                    return sent(b"\n\n");
                }
                Source::Events(body) => match Pin::new(body).poll_frame(context)? {
                    Poll::Ready(Some(frame)) => {
                        let is_empty = |data: &Bytes| data.starts_with(NO_DATA);
                        if *is_without_empty && frame.data_ref().is_some_and(is_empty) {
                            continue;
                        }
                        pace.restart();
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Poll::Ready(None) => *source = Source::Ended,
                    Poll::Pending => break,
                },
                Source::Ended => return Poll::Ready(None),
            }
        }
        ready!(pace.poll_due(context));
        sent(COMMENT)
    }
}
