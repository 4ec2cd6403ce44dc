//! Clients that close the sending side of a connection while they wait for an answer, as `nc -N` does.
//!
//! The kernel shows the same for a client that is gone: the end of what it sends. hyper would take either for a client that
//! is gone, and drop its call. So the end is kept from hyper until the answer is sent, and reported to the code that makes the answer:
//! only what is sent to a client shows whether it is still there, because the kernel of one that is gone refuses it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use isolator_pool::lock::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// The sending side of a connection's client; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side {
    closed: CancellationToken,
    answering: Arc<Mutex<Answering>>,
}

#[derive(Debug, Default)]
struct Answering {
    /// Whether a request is being received or answered.
    is_busy: bool,
    /// The task that waits for the end of what the client sends.
    reader: Option<Waker>,
}

impl Side {
    /// Cancelled when the client has closed it.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// A request has begun. It ends when the body of its answer is dropped.
    pub(crate) fn begin(&self) {
        lock(&self.answering).is_busy = true;
    }

    fn end(&self) {
        let mut answering = lock(&self.answering);
        answering.is_busy = false;
        if let Some(reader) = answering.reader.take() {
            reader.wake();
        }
    }

    fn poll_end(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut answering = lock(&self.answering);
        if answering.is_busy {
            answering.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection that does not end before its client is answered.
pub(crate) struct Patient<Stream> {
    stream: Stream,
    side: Side,
}

impl<Stream> Patient<Stream> {
    pub(crate) fn new(stream: Stream, side: Side) -> Self {
        Self { stream, side }
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for Patient<Stream> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.side.closed.is_cancelled() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.side.closed.cancel();
        }
        self.side.poll_end(context)
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for Patient<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a request. It fails if the client closes its sending side before the end.
pub(crate) struct Received<Inner> {
    body: Inner,
    side: Side,
}

impl<Inner> Received<Inner> {
    pub(crate) fn new(body: Inner, side: Side) -> Self {
        Self { body, side }
    }
}

impl<Inner> hyper::body::Body for Received<Inner>
where
    Inner: hyper::body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.side.closed.is_cancelled() => {
                let error = "the client closed the connection before the end of the body";
                Poll::Ready(Some(Err(axum::Error::new(error))))
            }
            polled => polled.map_err(axum::Error::new),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. When it is dropped, the connection may end.
pub(crate) struct AnswerBody {
    body: Body,
    side: Side,
}

impl AnswerBody {
    pub(crate) fn new(body: Body, side: Side) -> Self {
        Self { body, side }
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.side.end();
    }
}
