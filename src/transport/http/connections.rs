//! HTTP connections: limited in number, with TLS if there is a certificate, closed when they are idle or too slow in
//! either direction, and shut down gracefully. A client that closes only its sending side is
//! [answered](crate::web::Side).

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Place;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::certificate::Certificate;
use crate::node::Node;
use crate::web::{AnswerBody, Patient, Peer, Received, Side};

/// For a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's line and headers; more is answered with 431.
pub(super) const MAX_HEADERS: usize = 64 * 1024;

/// The header of answers that names the node.
pub(super) const NODE: HeaderName = HeaderName::from_static("isolator-node");

/// After accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

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
    stop: CancellationToken,
    end: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.all));
    // Every name is a value of a header.
    let node = node.name().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    let graceful = GracefulShutdown::new();
    let connections = Connections { router, certificate, limits, node, graceful };
    let places = Places::default();
    let tasks = TaskTracker::new();
    let (mut failures, mut refusals) = (Rarely::default(), Rarely::default());
    let mut refusals_of_address = Rarely::default();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(times) = failures.count() {
                    tracing::warn!(%error, times, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            if let Some(times) = refusals.count() {
                let most = limits.all;
                let [hint, _] = limits.hints;
                tracing::warn!(most, times, hint, "there are too many connections");
            }
            connections.refuse(&stream, "the server has too many open connections");
            continue;
        };
        let place = Place::of(peer.ip());
        let Some(counted) = places.count(place, limits.of_address) else {
            if let Some(times) = refusals_of_address.count() {
                let most = limits.of_address;
                let [_, hint] = limits.hints;
                tracing::warn!(address = %place, most, times, hint, "an address has too many connections");
            }
            connections.refuse(&stream, "this address has too many open connections");
            continue;
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
    }
    drop(listener);
    tasks.close();
    tokio::select! {
        () = connections.graceful.shutdown() => {}
        () = end.cancelled() => {}
    }
    tasks.wait().await;
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
    graceful: GracefulShutdown,
}

impl Connections {
    /// Tells a client why it is not served, unless that would need a handshake first.
    fn refuse(&self, stream: &TcpStream, why: &str) {
        if self.certificate.is_none() {
            let node = self.node.as_ref().and_then(|node| node.to_str().ok());
            let node = node.map(|node| format!("{NODE}: {node}\r\n")).unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n{node}\
                 content-length: {}\r\n\r\n{why}\n",
                why.len() + 1
            );
            // What the kernel does not take at once is not worth a wait.
            let _ = stream.try_write(answer.as_bytes());
        }
    }

    /// Serves one connection.
    fn serve(&self, stream: TcpStream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let (router, node) = (self.router.clone(), self.node.clone());
        let watcher = self.graceful.watcher();
        let tls = self.certificate.as_ref().map(Certificate::acceptor);
        let idle_timeout = self.limits.idle_timeout;
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.write_timeout));
        let stream = Box::pin(stream);
        async move {
            let ended = match tls {
                None => {
                    let connection = connection(stream, router, node, peer, idle_timeout);
                    watcher.watch(connection).await
                }
                Some(tls) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let connection = connection(stream, router, node, peer, idle_timeout);
                            watcher.watch(connection).await
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

/// Only HTTP/1.1: newer versions are faster with many requests at once, which agents don't send.
fn connection<Stream>(
    stream: Stream,
    router: Router,
    node: Option<HeaderValue>,
    peer: Peer,
    idle_timeout: Duration,
) -> http1::Connection<
    TokioIo<Patient<Stream>>,
    impl hyper::service::Service<
        hyper::Request<Incoming>,
        Response = hyper::Response<Body>,
        Error = Infallible,
        Future: Send,
    >,
>
where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let side = Side::default();
    let stream = TokioIo::new(Patient::new(stream, side.clone()));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        side.begin();
        let received = |body| Body::new(Received::new(body, side.clone()));
        let mut request: Request = request.map(received);
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(side.clone());
        let (answered, side) = (router.clone().oneshot(request), side.clone());
        let node = node.clone();
        async move {
            let mut answer = answered.await?;
            if let Some(node) = node {
                answer.headers_mut().insert(NODE, node);
            }
            Ok(answer.map(|body| Body::new(AnswerBody::new(body, side))))
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_timeout)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(stream, service)
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
