//! HTTP connections: limited in number, with TLS if there is a certificate, closed when they are idle or too slow in
//! either direction, and shut down gracefully.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use isolator_pool::lock::lock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// For the headers of a request, from when a connection begins to wait for one. Idle connections are closed after
/// this, and clients open new ones.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);

/// For a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's line and headers; more is answered with 431.
pub(super) const MAX_HEADERS: usize = 64 * 1024;

/// After accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many there can be.
    pub(super) all: usize,
    /// How many of them can come from one address.
    pub(super) of_address: usize,
    /// How long a client can read nothing of an answer.
    pub(super) write_timeout: Duration,
}

/// Who has connections. An IPv6 client owns all addresses of a network, so those count as one.
#[derive(Debug, Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection's place among those of its address; given back when dropped.
struct Place {
    addresses: Addresses,
    address: IpAddr,
}

impl Addresses {
    /// Takes a place; `None` if the address has `most` already.
    fn take(&self, address: IpAddr, most: usize) -> Option<Place> {
        let address = match address.to_canonical() {
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
            }
            v4 => v4,
        };
        let mut open = lock(&self.0);
        let count = open.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { addresses: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.addresses.0);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Accepts connections until `stop` is cancelled, then waits for the open ones to finish, until `end` is cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    end: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.all));
    let connections = Connections {
        router,
        tls: tls.map(TlsAcceptor::from),
        write_timeout: limits.write_timeout,
        graceful: GracefulShutdown::new(),
    };
    let addresses = Addresses::default();
    let tasks = TaskTracker::new();
    loop {
        // A connection waits in the kernel's queue until there is a slot for it.
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                let Some(place) = addresses.take(peer.ip(), limits.of_address) else {
                    refuse(&stream, connections.tls.is_some());
                    continue;
                };
                let served = connections.serve(stream, Peer(peer));
                let end = end.clone();
                tasks.spawn(async move {
                    tokio::select! {
                        () = served => {}
                        () = end.cancelled() => {}
                    }
                    drop((slot, place));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    tokio::select! {
        () = connections.graceful.shutdown() => {}
        () = end.cancelled() => {}
    }
    tasks.wait().await;
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // An answer is written in several pieces. Without this, the last one waits 40 ms for the client's
    // acknowledgement of the first.
    stream.set_nodelay(true)?;
    Ok((stream, peer, slot))
}

/// Tells a client that its address has too many connections, unless that would need a handshake first.
fn refuse(stream: &TcpStream, is_tls: bool) {
    const ANSWER: &str = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
        content-length: 43\r\n\r\nthis address has too many open connections\n";
    if !is_tls {
        // What the kernel does not take at once is not worth a wait.
        let _ = stream.try_write(ANSWER.as_bytes());
    }
}

struct Connections {
    router: Router,
    tls: Option<TlsAcceptor>,
    write_timeout: Duration,
    graceful: GracefulShutdown,
}

impl Connections {
    /// Serves one connection.
    fn serve(&self, stream: TcpStream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let router = self.router.clone();
        let watcher = self.graceful.watcher();
        let tls = self.tls.clone();
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.write_timeout));
        let stream = Box::pin(stream);
        async move {
            let ended = match tls {
                None => {
                    let connection = connection(TokioIo::new(stream), router, peer);
                    watcher.watch(connection).await
                }
                Some(tls) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let connection = connection(TokioIo::new(stream), router, peer);
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
    stream: TokioIo<Stream>,
    router: Router,
    peer: Peer,
) -> http1::Connection<
    TokioIo<Stream>,
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
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(stream, service)
}

/// Reads a certificate with its chain, and its key, both in PEM.
pub(super) fn tls(certificate: &Path, key: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("{} is not a certificate in PEM", certificate.display()))?;
    let key_shown = key.display();
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{key_shown} is not a private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("{key_shown} is not the key of {}", certificate.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
