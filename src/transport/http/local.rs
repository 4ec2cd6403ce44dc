//! MCP over HTTP at the [local socket](crate::local_socket), for commands of the server's own user.
//!
//! A command is the same client as the host that started the server: [`Client::Host`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use isolator_pool::pool::admission::Client;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::guard::Guard;
use super::protocol;
use super::rules::Rules;
use super::sessions::Sessions;
use crate::config::HttpConfig;
use crate::current::Current;
use crate::local_socket::{CONFIGURATION, LocalSocket, fingerprint};
use crate::calls::budget::Budget;
use crate::mcp::server::Server;
use crate::transport::message::Limits;

/// Most connections. Each command has one.
const MAX_CONNECTIONS: usize = 64;

/// Time for the headers of a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// No proxy is in between, so answers can be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// Serves commands at the local socket until it is dropped, which also removes the socket.
pub(crate) struct Local {
    _end: DropGuard,
    _tasks: TaskTracker,
}

impl Local {
    /// Serves commands from now on. Without a socket, the server works all the same, and the log has the reason.
    pub(crate) fn start(server: &Server) -> Option<Self> {
        let started = LocalSocket::bind().map_err(anyhow::Error::from);
        match started.and_then(|socket| Self::serve(server, socket)) {
            Ok(local) => Some(local),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(
                    error,
                    "there is no local socket, so commands run in their own process"
                );
                None
            }
        }
    }

    fn serve(server: &Server, socket: LocalSocket) -> anyhow::Result<Self> {
        tracing::info!(socket = %socket.path().display(), "listening for commands of this user");
        let config = server.setup().config;
        let in_flight = config.requests.max_in_flight.as_usize();
        // No tokens, and no names but those of this machine.
        let settings = HttpConfig { tokens: None, ..config.http.clone() };
        let rules = Current::new(Rules::new(&settings, std::net::Ipv4Addr::LOCALHOST.into())?);
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let guard = Guard::new(
            rules.clone(),
            Arc::new(Sessions::new(config.limits.max_timeout)),
            Budget::new(in_flight, in_flight),
            Limits::new(config.limits.max_files),
            TaskTracker::new(),
            KEEP_ALIVE,
        );
        let router =
            protocol(server.clone(), guard.with_only_client(Client::Host), rules, end.clone())
                .layer(from_fn_with_state(server.clone(), check_configuration));
        tasks.spawn(accept(socket, router, tasks.clone(), end.clone()));
        Ok(Self { _end: end.drop_guard(), _tasks: tasks })
    }
}

/// Refuses requests that are meant for a server with another configuration.
async fn check_configuration(
    State(server): State<Server>,
    request: Request,
    next: Next,
) -> Response {
    let wanted = request.headers().get(CONFIGURATION);
    if wanted.is_some_and(|wanted| *wanted != fingerprint(&server.setup().config)) {
        return (StatusCode::PRECONDITION_FAILED, "the server has another configuration\n")
            .into_response();
    }
    next.run(request).await
}

async fn accept(socket: LocalSocket, router: Router, tasks: TaskTracker, end: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = end.cancelled() => return,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the local socket could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        // A command whose connection is closed runs in its own process.
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let (served, end) = (serve(stream, router.clone()), end.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = served => {}
                () = end.cancelled() => {}
            }
            drop(slot);
        });
    }
}

/// Serves one connection. When the command ends, its call is cancelled.
async fn serve(stream: UnixStream, router: Router) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        router.clone().oneshot(request.map(Body::new))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the local socket failed");
    }
}
