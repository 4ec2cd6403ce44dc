//! HTTP connections: limited in number, with TLS if there is a certificate, closed when they are idle or too slow, and
//! shut down gracefully.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
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
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
const MAX_HEADERS: usize = 64 * 1024;

/// After accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Accepts connections until `stop` is cancelled, then waits for the open ones to finish, until `end` is cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    most: usize,
    stop: CancellationToken,
    end: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(most));
    let connections =
        Connections { router, tls: tls.map(TlsAcceptor::from), graceful: GracefulShutdown::new() };
    let tasks = TaskTracker::new();
    loop {
        // A connection waits in the kernel's queue until there is a slot for it.
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                let served = connections.serve(stream, Peer(peer));
                let end = end.clone();
                tasks.spawn(async move {
                    tokio::select! {
                        () = served => {}
                        () = end.cancelled() => {}
                    }
                    drop(slot);
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

struct Connections {
    router: Router,
    tls: Option<TlsAcceptor>,
    graceful: GracefulShutdown,
}

impl Connections {
    /// Serves one connection.
    fn serve(&self, stream: TcpStream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let router = self.router.clone();
        let watcher = self.graceful.watcher();
        let tls = self.tls.clone();
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
