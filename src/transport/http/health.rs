//! Checks of health: whether the process answers, and whether it can serve calls.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::ALLOW;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use isolator_pool::pool::PoolStatus;
use tokio_util::sync::CancellationToken;

use crate::mcp::server::Server;

/// What is checked.
#[derive(Clone)]
pub(super) struct Health {
    /// The server, for its pools.
    pub(super) server: Server,
    /// Cancelled when no more calls are taken.
    pub(super) draining: CancellationToken,
}

impl Health {
    /// Adds the two checks to a router.
    pub(super) fn route(self, router: Router) -> Router {
        router
            .route("/healthz", check(async || "ok\n"))
            .route("/readyz", check(move || std::future::ready(self.ready())))
    }

    fn ready(&self) -> (StatusCode, String) {
        if self.draining.is_cancelled() {
            return (StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down\n".to_owned());
        }
        let pools = self.server.setup().pools;
        let statuses = pools.status();
        let missing: Vec<_> =
            statuses.iter().filter(|(_, pool)| !is_ready(pool)).map(|(name, _)| *name).collect();
        if missing.is_empty() {
            (StatusCode::OK, "ready\n".to_owned())
        } else {
            let message = format!("no sandbox is ready for {}\n", missing.join(", "));
            (StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

/// Whether a pool can serve calls. One whose sandboxes are all in use can: calls get the next.
fn is_ready(pool: &PoolStatus) -> bool {
    let served: u64 = pool.starts.iter().sum();
    pool.size == 0 || pool.hot + pool.paused > 0 || (served > 0 && pool.last_error.is_none())
}

/// A check of health. HAProxy asks with OPTIONS, and reads only the status.
fn check<Answer, Handler, Answered>(handler: Handler) -> MethodRouter
where
    Answer: IntoResponse + 'static,
    Handler: Fn() -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Answer> + Send + 'static,
{
    let of_options = handler.clone();
    get(handler).options(move || {
        let answer = of_options();
        async move { (answer.await.into_response().status(), [(ALLOW, "GET, HEAD, OPTIONS")]) }
    })
}
