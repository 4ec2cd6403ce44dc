//! Checks of health: whether the process answers, and whether it can serve calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::ALLOW;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use isolator_pool::lock::lock;
use isolator_pool::pool::PoolStatus;
use tokio_util::sync::CancellationToken;

use crate::mcp::server::Server;

/// What is checked.
#[derive(Clone)]
pub(super) struct Health {
    server: Server,
    /// Cancelled when no more calls are taken.
    draining: CancellationToken,
    /// The pools that were ready once, when all were for the first time and later.
    were_ready: Arc<Mutex<BTreeSet<String>>>,
}

impl Health {
    /// Of a server. `draining` is cancelled when it takes no more calls.
    pub(super) fn new(server: Server, draining: CancellationToken) -> Self {
        Self { server, draining, were_ready: Arc::default() }
    }

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
        readiness(&statuses, &mut lock(&self.were_ready))
    }
}

/// Whether a server is ready. Once it was, a pool that comes later, with another configuration, counts only after it was ready
/// itself: calls to the others are served meanwhile.
fn readiness(
    statuses: &BTreeMap<&str, PoolStatus>,
    were_ready: &mut BTreeSet<String>,
) -> (StatusCode, String) {
    let (ready, missing): (Vec<_>, Vec<_>) = statuses.iter().partition(|(_, it)| is_ready(it));
    // A language that was removed may come again with another image.
    were_ready.retain(|name| statuses.contains_key(name.as_str()));
    let was_ready = !were_ready.is_empty();
    if missing.is_empty() || was_ready {
        were_ready.extend(ready.iter().map(|(name, _)| (**name).to_owned()));
    }
    let names = |are_new: bool| -> Vec<&str> {
        let is_new = |name: &str| was_ready && !were_ready.contains(name);
        missing.iter().map(|(name, _)| **name).filter(|name| is_new(name) == are_new).collect()
    };
    let (lost, coming) = (names(false), names(true));
    if !lost.is_empty() {
        let message = format!("no sandbox is ready for {}\n", lost.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, message)
    } else if !coming.is_empty() {
        (StatusCode::OK, format!("ready; no sandbox is ready yet for {}\n", coming.join(", ")))
    } else {
        (StatusCode::OK, "ready\n".to_owned())
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

#[cfg(test)]
mod tests {
    use isolator_pool::engine::preload::PreloadStatus;
    use isolator_pool::pool::sizing::Size;

    use super::*;

    fn pool(paused: usize) -> PoolStatus {
        PoolStatus {
            hot: 0,
            paused,
            making: 0,
            size: 2,
            sizes: Size::Fixed(2),
            lead: None,
            starts: [0; 4],
            former_image: None,
            outdated: 0,
            last_error: None,
            preload: PreloadStatus::default(),
        }
    }

    #[test]
    fn a_pool_that_comes_later_does_not_take_a_server_away_that_serves_the_others() {
        let mut were_ready = BTreeSet::new();
        let mut look = |pools: &[(&'static str, usize)]| {
            let statuses = pools.iter().map(|(name, paused)| (*name, pool(*paused))).collect();
            let (status, text) = readiness(&statuses, &mut were_ready);
            (status.as_u16(), text)
        };
        // At the start all must be.
        assert_eq!(look(&[("go", 0), ("python", 2)]).0, 503);
        assert_eq!(look(&[("go", 1), ("python", 0)]).0, 503);
        assert_eq!(look(&[("go", 1), ("python", 1)]), (200, "ready\n".to_owned()));
        let (status, text) = look(&[("go", 1), ("node", 0), ("python", 1)]);
        assert!(status == 200 && text.contains("yet for node"), "{text}");
        // One that was ready counts, and so does the new one from then on.
        let (status, text) = look(&[("go", 0), ("node", 0), ("python", 1)]);
        assert!(status == 503 && text.contains("for go\n"), "{text}");
        assert_eq!(look(&[("go", 1), ("node", 1), ("python", 1)]).0, 200);
        assert_eq!(look(&[("go", 1), ("node", 0), ("python", 1)]).0, 503);
        // One that was removed and comes again is new.
        assert_eq!(look(&[("go", 1), ("python", 1)]).0, 200);
        assert_eq!(look(&[("go", 1), ("node", 0), ("python", 1)]).0, 200);
    }
}
