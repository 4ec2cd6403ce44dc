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

use super::Access;
use crate::calls::Setup;
use crate::mcp::server::Server;
use crate::metrics::Reason;

/// The parts that are checked; cheap to clone.
#[derive(Clone)]
pub(crate) struct Health(Arc<Checked>);

struct Checked {
    server: Server,
    /// The clients that can call, if they come over HTTP.
    access: Option<Access>,
    /// The pools that were ready once, when all were for the first time and later.
    were_ready: Mutex<BTreeSet<String>>,
}

/// How a server is.
#[derive(Debug, Default)]
struct State {
    /// Why it serves no call, or none in some language.
    not_ready: Vec<Reason>,
    /// The pools that count only once they were ready.
    coming: Vec<String>,
}

impl Health {
    /// Of a server.
    pub(crate) fn new(server: Server, access: Option<Access>) -> Self {
        Self(Arc::new(Checked { server, access, were_ready: Mutex::default() }))
    }

    /// The server.
    pub(super) fn server(&self) -> &Server {
        &self.0.server
    }

    /// Whether it was given the notice, and serves its clients for a while at most.
    pub(crate) fn is_drained(&self) -> bool {
        self.0.server.notice().is_given()
    }

    /// The part of its slots that is taken.
    pub(crate) fn load(&self) -> f64 {
        self.0.server.setup().pools.load_ratio()
    }

    /// Adds the two checks to a router.
    pub(super) fn route(self, router: Router) -> Router {
        router
            .route("/healthz", check(async || "ok\n"))
            .route("/readyz", check(move || std::future::ready(self.answer())))
    }

    /// Why the server serves no call, or none in some language; nothing if it is ready.
    pub(crate) fn not_ready(&self) -> Vec<Reason> {
        self.state().not_ready
    }

    fn state(&self) -> State {
        let Checked { server, access, were_ready } = &*self.0;
        if self.is_drained() {
            let not_ready = vec![Reason::public("the server is shutting down")];
            return State { not_ready, ..State::default() };
        }
        let Setup { pools, audit, .. } = server.setup();
        let mut state = readiness(&pools.status(), &mut lock(were_ready));
        let of_audit = audit.refusal().map(|_| Reason {
            what: "the audit log can't be written, so every call is refused".to_owned(),
            detail: audit.failure(),
        });
        let of_tokens = access.as_ref().and_then(Access::refuses_all);
        state.not_ready.splice(0..0, of_audit.into_iter().chain(of_tokens));
        state
    }

    /// The answer to the question whether the server is ready.
    fn answer(&self) -> (StatusCode, String) {
        let State { not_ready, coming } = self.state();
        if !not_ready.is_empty() {
            let lines = not_ready.iter().map(|reason| format!("{}\n", reason.what));
            (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
        } else if !coming.is_empty() {
            (StatusCode::OK, format!("ready; no sandbox is ready yet for {}\n", coming.join(", ")))
        } else {
            (StatusCode::OK, "ready\n".to_owned())
        }
    }
}

/// Whether a server is ready. Once it was, a pool that comes later, with another configuration, counts only after it was ready
/// itself: calls to the others are served meanwhile.
fn readiness(statuses: &BTreeMap<&str, PoolStatus>, were_ready: &mut BTreeSet<String>) -> State {
    let (ready, missing): (Vec<_>, Vec<_>) = statuses.iter().partition(|(_, it)| is_ready(it));
    // A language that was removed may come again with another image.
    were_ready.retain(|name| statuses.contains_key(name.as_str()));
    let was_ready = !were_ready.is_empty();
    if missing.is_empty() || was_ready {
        were_ready.extend(ready.iter().map(|(name, _)| (**name).to_owned()));
    }
    let is_new = |name: &str| was_ready && !were_ready.contains(name);
    let (coming, lost): (Vec<_>, Vec<_>) = missing.into_iter().partition(|(name, _)| is_new(name));
    let name = |(name, _): &(&&str, &PoolStatus)| (**name).to_owned();
    let names = lost.iter().map(name).collect::<Vec<_>>().join(", ");
    let error = |(name, pool): &(&&str, &PoolStatus)| {
        pool.last_error.as_ref().map(|error| format!("{name}: {error}"))
    };
    // The state has those of all pools.
    let detail = lost.iter().find_map(error);
    let what = format!("no sandbox is ready for {names}");
    let not_ready = if lost.is_empty() { vec![] } else { vec![Reason { what, detail }] };
    let coming = coming.iter().map(name).collect();
    State { not_ready, coming }
}

/// Whether a pool can serve calls. One whose sandboxes are all in use can: calls get the next.
fn is_ready(pool: &PoolStatus) -> bool {
    let served: u64 = pool.starts.iter().sum();
    let can_make = pool.last_error.is_none() && (pool.size == 0 || served > 0);
    pool.hot + pool.paused > 0 || can_make
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
            let state = readiness(&statuses, &mut were_ready);
            let not_ready: Vec<_> = state.not_ready.into_iter().map(|it| it.what).collect();
            (not_ready.join(" "), state.coming.join(" "))
        };
        let well = || (String::new(), String::new());
        // At the start all must be.
        assert_eq!(look(&[("go", 0), ("python", 2)]).0, "no sandbox is ready for go");
        assert_eq!(look(&[("go", 1), ("python", 0)]).0, "no sandbox is ready for python");
        assert_eq!(look(&[("go", 1), ("python", 1)]), well());
        let coming = (String::new(), "node".to_owned());
        assert_eq!(look(&[("go", 1), ("node", 0), ("python", 1)]), coming);
        // One that was ready counts, and so does the new one from then on.
        let lost = look(&[("go", 0), ("node", 0), ("python", 1)]);
        assert_eq!(lost, ("no sandbox is ready for go".to_owned(), "node".to_owned()));
        assert_eq!(look(&[("go", 1), ("node", 1), ("python", 1)]), well());
        let lost = look(&[("go", 1), ("node", 0), ("python", 1)]);
        assert_eq!(lost.0, "no sandbox is ready for node");
        // One that was removed and comes again is new.
        assert_eq!(look(&[("go", 1), ("python", 1)]), well());
        assert_eq!(look(&[("go", 1), ("node", 0), ("python", 1)]), coming);
    }

    #[test]
    fn a_pool_in_which_none_should_wait_is_ready_unless_none_could_be_made() {
        let mut found = PoolStatus { size: 0, ..pool(0) };
        assert!(is_ready(&found));
        found.last_error = Some("the engine is away".to_owned());
        assert!(!is_ready(&found));
        let state = readiness(&BTreeMap::from([("go", found)]), &mut BTreeSet::new());
        let [reason] = state.not_ready.as_slice() else { panic!("{state:?}") };
        assert_eq!(reason.what, "no sandbox is ready for go");
        assert_eq!(reason.detail.as_deref(), Some("go: the engine is away"));
    }
}
