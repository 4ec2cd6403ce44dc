//! HTTP connections: limited in number, with TLS if there is a certificate, closed when they are idle or too slow in
//! either direction, and shut down gracefully. A client that closes only its sending side is
//! [answered](crate::web::Side).

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Place;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Ending;
use super::certificate::Certificate;
use crate::node::Node;
use crate::notice::Notice;
use crate::web::{AnswerBody, Patient, Peer, Received, Side};

/// For a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's line and headers; more is answered with 431.
pub(super) const MAX_HEADERS: usize = 64 * 1024;

/// The header of answers that names the node.
pub(super) const NODE: HeaderName = HeaderName::from_static("isolator-node");

/// After accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a connection that was opened just before the end can take to send its request.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(200);

/// Most connections that are accepted after the end, because they were open before it.
const MAX_WAITING: usize = 1024;

/// Shortest time between two lines in the log about connections that are not served. A client that opens them must not fill it.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many there can be.
    pub(super) all: usize,
    /// How many of them can come from one [place](Place).
    pub(super) of_address: usize,
    /// How long a client can read nothing of an answer.
    pub(super) write_timeout: Duration,
    /// For the headers of a request, from when a connection begins to wait for one.
    pub(super) idle_timeout: Duration,
    /// Advice for the log about too many connections, and about too many from one address.
    pub(super) hints: [&'static str; 2],
}

/// How many connections come from each place.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<HashMap<Place, usize>>>);

/// A connection among those of its place; given back when dropped.
struct Counted {
    places: Places,
    place: Place,
}

impl Places {
    /// Counts a connection; `None` if its place has `most` already.
    fn count(&self, place: Place, most: usize) -> Option<Counted> {
        let mut open = lock(&self.0);
        let count = open.entry(place).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Counted { places: self.clone(), place })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = lock(&self.places.0);
        if let Some(count) = open.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.place);
            }
        }
    }
}

/// Counts what happens too often for a line in the log each time.
#[derive(Debug, Default)]
struct Rarely {
    last: Option<Instant>,
    count: u64,
}

impl Rarely {
    /// How often it has happened since the last line, if it is time for another one.
    fn count(&mut self) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| last.elapsed() < BETWEEN_LINES) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.count))
    }
}

/// Accepts connections until `stop` is cancelled, then waits for the open ones to finish, until `end` is cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    certificate: Option<Certificate>,
    router: Router,
    limits: Limits,
    node: &Node,
    notice: Notice,
    ending: Ending,
) {
    let Ending { connections: tasks, stop, end, .. } = ending;
    let slots = Arc::new(Semaphore::new(limits.all));
    // Every name is a value of a header.
    let node = node.name().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    let stopping = stop.clone();
    let connections = Connections { router, certificate, limits, node, notice, stopping };
    let places = Places::default();
    let mut failures = Rarely::default();
    let (mut refusals, mut refusals_of_address) = (Rarely::default(), Rarely::default());
    let mut take = |stream: TcpStream, peer: SocketAddr| {
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            if let Some(times) = refusals.count() {
                let most = limits.all;
                let [hint, _] = limits.hints;
                tracing::warn!(most, times, hint, "there are too many connections");
            }
            connections.refuse(&stream, "the server has too many open connections");
            return;
        };
        let place = Place::of(peer.ip());
        let Some(counted) = places.count(place, limits.of_address) else {
            if let Some(times) = refusals_of_address.count() {
                let most = limits.of_address;
                let [_, hint] = limits.hints;
                tracing::warn!(address = %place, most, times, hint, "an address has too many connections");
            }
            connections.refuse(&stream, "this address has too many open connections");
            return;
        };
        let served = connections.serve(stream, Peer(peer));
        let end = end.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = served => {}
                () = end.cancelled() => {}
            }
            drop((slot, counted));
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => take(stream, peer),
            Err(error) => {
                if let Some(times) = failures.count() {
                    tracing::warn!(%error, times, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    // For the clients of those that wait they are open, and their requests have been sent.
    if let Err(error) = take_waiting(listener, take) {
        tracing::debug!(%error, "the connections that waited were not all accepted");
    }
    tasks.close();
    tasks.wait().await;
}

/// Takes the connections that wait to be accepted, and no more.
fn take_waiting(
    listener: TcpListener,
    mut take: impl FnMut(TcpStream, SocketAddr),
) -> io::Result<()> {
    let listener = listener.into_std()?;
    for _ in 0..MAX_WAITING {
        let (stream, peer) = match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            accepted => accepted?,
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        take(TcpStream::from_std(stream)?, peer);
    }
    Ok(())
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // An answer is written in several pieces. Without this, the last one waits 40 ms for the client's
    // acknowledgement of the first.
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

struct Connections {
    router: Router,
    certificate: Option<Certificate>,
    limits: Limits,
    /// The name of this node, which is in all answers.
    node: Option<HeaderValue>,
    /// From when it is given, answers ask clients to close their connections.
    notice: Notice,
    /// Cancelled when connections end after their answers.
    stopping: CancellationToken,
}

impl Connections {
    /// Tells a client why it is not served, unless that would need a handshake first.
    fn refuse(&self, stream: &TcpStream, why: &str) {
        if self.certificate.is_none() {
            let node = self.node.as_ref().and_then(|node| node.to_str().ok());
            let node = node.map(|node| format!("{NODE}: {node}\r\n")).unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nisolator-outcome: not-run\r\nconnection: close\r\n{node}\
                 content-length: {}\r\n\r\n{why}\n",
                why.len() + 1
            );
            // What the kernel does not take at once is not worth a wait.
            let _ = stream.try_write(answer.as_bytes());
        }
    }

    /// Serves one connection.
    fn serve(&self, stream: TcpStream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let router = self.router.clone();
        let heads = Heads { node: self.node.clone(), notice: self.notice.clone() };
        let stopping = self.stopping.clone();
        let tls = self.certificate.as_ref().map(Certificate::acceptor);
        let idle_timeout = self.limits.idle_timeout;
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.write_timeout));
        let stream = Box::pin(stream);
        async move {
            let ended = match tls {
                None => serve_connection(stream, router, heads, peer, idle_timeout, stopping).await,
                Some(tls) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            serve_connection(stream, router, heads, peer, idle_timeout, stopping)
                                .await
                        }
                        Ok(Err(error)) => {
                            return tracing::debug!(%error, ?peer, "the TLS handshake failed");
                        }
                        Err(_) => return tracing::debug!(?peer, "the TLS handshake timed out"),
                    }
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, ?peer, "a connection failed");
            }
        }
    }
}

/// The headers of all answers.
#[derive(Clone)]
struct Heads {
    node: Option<HeaderValue>,
    notice: Notice,
}

impl Heads {
    fn complete(self, headers: &mut HeaderMap) {
        if let Some(node) = self.node {
            headers.insert(NODE, node);
        }
        if self.notice.is_given() {
            // An idle connection that is closed later could have the next request on its way.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Serves a connection until its end, or that of the server. Only HTTP/1.1: newer versions are faster with many requests at once,
/// which agents don't send.
async fn serve_connection<Stream>(
    stream: Stream,
    router: Router,
    heads: Heads,
    peer: Peer,
    idle_timeout: Duration,
    stopping: CancellationToken,
) -> hyper::Result<()>
where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let side = Side::default();
    let stream = TokioIo::new(Patient::new(stream, side.clone()));
    let has_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&has_begun);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        begun.store(true, Ordering::Relaxed);
        side.begin();
        let received = |body| Body::new(Received::new(body, side.clone()));
        let mut request: Request = request.map(received);
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(side.clone());
        let (answered, side) = (router.clone().oneshot(request), side.clone());
        let heads = heads.clone();
        async move {
            let mut answer = answered.await?;
            heads.complete(answer.headers_mut());
            let answer = answer.map(|body| Body::new(AnswerBody::new(body, side)));
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_timeout)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        () = stopping.cancelled() => {}
    }
    if !has_begun.load(Ordering::Relaxed) {
        // The first request may be on its way. Its client could not know whether it was read.
        if let Ok(ended) = tokio::time::timeout(FIRST_REQUEST_GRACE, &mut connection).await {
            return ended;
        }
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_events_are_logged_rarely() {
        let mut rarely = Rarely::default();
        assert_eq!(rarely.count(), Some(1));
        assert_eq!((rarely.count(), rarely.count()), (None, None));
        rarely.last = Instant::now().checked_sub(BETWEEN_LINES);
        assert_eq!(rarely.count(), Some(3));
    }
}
