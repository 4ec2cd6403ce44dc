//! MCP over HTTP at the [local socket](crate::local_socket), for commands of the server's own user.
//!
//! A command is the same client as the host that started the server: [`Client::Host`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode};
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
use super::sessions::Sessions;
use super::{Access, Ending, Listener, protocol};
use crate::local_socket::{CONFIGURATION, HAS_NOT_RUN, LocalSocket, fingerprint};
use crate::mcp::server::Server;
use crate::node::Node;
use crate::transport::message::Limits;

/// Most connections. A command has one for each call, and one for a session that it holds.
const MAX_CONNECTIONS: usize = 64;

/// Most further connections that are refused with an answer at the same time.
const MAX_REFUSALS: usize = 64;

/// Time for that answer.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for the headers of a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long an answer can be silent. Commands take a server that is silent for long for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Serves commands at the local socket until it is dropped, which also removes the socket.
pub(crate) struct Local {
    _end: DropGuard,
    draining: CancellationToken,
    tasks: TaskTracker,
    access: Access,
    server: Server,
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
        let access = Access::new(Listener::Local, &config)?;
        let rules = access.rules.clone();
        let [end, draining] = [(); 2].map(|()| CancellationToken::new());
        let tasks = TaskTracker::new();
        let guard = Guard::new(
            rules.clone(),
            Arc::new(Sessions::new(config.limits.max_timeout, &Node::default())),
            access.bodies.clone(),
            Limits::new(config.limits.max_files),
            &Ending::default(),
            KEEP_ALIVE,
        );
        let router =
            protocol(server.clone(), guard.with_only_client(Client::Host), rules, end.clone())
                .layer(from_fn_with_state((server.clone(), draining.clone()), check));
        let ends = Ends { draining: draining.clone(), end: end.clone() };
        tasks.spawn(accept(socket, router, tasks.clone(), ends));
        Ok(Self { _end: end.drop_guard(), draining, tasks, access, server: server.clone() })
    }

    /// The part that changes with the configuration.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// Refuses new calls from now on. Those that run go on, but those that only hold a session.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
        self.server.release_sessions();
    }

    /// Refuses new calls, and waits for the answers of those that run.
    pub(crate) async fn finish(&self) {
        self.drain();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Refuses requests that are meant for a server with another configuration, or that come when this one is stopping. `OPTIONS` asks
/// for nothing else.
async fn check(
    State((server, draining)): State<(Server, CancellationToken)>,
    request: Request,
    next: Next,
) -> Response {
    let wanted = request.headers().get(CONFIGURATION);
    let mut answer = if draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "the server is stopping\n").into_response()
    } else if wanted.is_some_and(|wanted| *wanted != fingerprint(&server.setup().config)) {
        (StatusCode::PRECONDITION_FAILED, "the server has another configuration\n").into_response()
    } else if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    if NOT_RUN.contains(&answer.status()) {
        answer.headers_mut().insert(HAS_NOT_RUN, HeaderValue::from_static("true"));
    }
    answer
}

/// The statuses of requests that are refused here or by the guard, before anything runs. The answers of calls have others.
const NOT_RUN: [StatusCode; 4] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::PRECONDITION_FAILED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// The ends of a listener.
#[derive(Clone)]
struct Ends {
    /// No new calls; those that run go on.
    draining: CancellationToken,
    /// Everything.
    end: CancellationToken,
}

async fn accept(socket: LocalSocket, router: Router, tasks: TaskTracker, ends: Ends) {
    let [slots, refusals] =
        [MAX_CONNECTIONS, MAX_REFUSALS].map(|number| Arc::new(Semaphore::new(number)));
    let full = Router::new().fallback(async || StatusCode::SERVICE_UNAVAILABLE);
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = ends.draining.cancelled() => return,
            () = ends.end.cancelled() => return,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the local socket could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            let served = serve(stream, router.clone(), ends.clone());
            tasks.spawn(async move {
                served.await;
                drop(slot);
            });
        } else if let Ok(slot) = Arc::clone(&refusals).try_acquire_owned() {
            let refused = serve(stream, full.clone(), ends.clone());
            tasks.spawn(async move {
                let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refused).await;
                drop(slot);
            });
        }
        // Even more are closed. For a command that is the same: it runs in its own process.
    }
}

/// Serves one connection. When the command ends, its call is cancelled.
async fn serve(stream: UnixStream, router: Router, ends: Ends) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        router.clone().oneshot(request.map(Body::new))
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = ends.end.cancelled() => return,
        () = ends.draining.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served => ended,
                () = ends.end.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the local socket failed");
    }
}
