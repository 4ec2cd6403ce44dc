//! The API of E2B: sandboxes for agents, on sessions.
//!
//! The *control plane* creates and ends sandboxes. The *data plane* uses one: its processes and files, and its code. A sandbox is
//! a session, so it has its bounds, and is listed with the sessions of its client.

mod code;
mod control;
mod data;
mod deadlines;
pub(crate) mod error;
pub(crate) mod registry;
mod secret;
mod watchers;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use isolator_pool::engine::limits::ByteSize;

use self::error::{E2bError, ErrorKind};
use self::registry::{Sandbox, Sandboxes};
use super::Apis;
use super::access::Caller;
use super::operation::Operation;
use crate::calls::Serving;
use crate::calls::idempotency::KEY_HEADER;

pub(crate) use self::secret::FileQuery;

/// The version of the program in E2B's sandboxes that this server is like. SDKs refuse what it did not have.
const ENVD_VERSION: &str = "0.6.3";

/// The state of all handlers; cheap to clone.
#[derive(Clone)]
pub(crate) struct E2b {
    apis: Apis,
    sandboxes: Sandboxes,
}

impl E2b {
    fn new(apis: &Apis) -> Self {
        let sandboxes = Sandboxes::new(apis.now().calls.sessions().registry());
        Self { apis: apis.clone(), sandboxes }
    }

    /// Everything that serves requests which begin now.
    pub(crate) fn now(&self) -> Serving {
        self.apis.now()
    }

    /// Lets a request to a sandbox in: its head is checked, and it shows that it may use the sandbox. The session is taken with
    /// [`Sandbox::session`].
    ///
    /// # Errors
    ///
    /// The answer. Connect has its own form for it, [`E2bError::connect_body`].
    pub(crate) fn let_in(&self, head: &Parts) -> Result<(Arc<Sandbox>, Caller), E2bError> {
        let now = self.now();
        let domain = domain(&now);
        self.check(head, domain)?;
        let sandbox = self.sandboxes.of_data_request(head, domain).map_err(|error| {
            // One that is gone may have served the request with this key before.
            let may_have_run =
                error.kind() == ErrorKind::SandboxGone && head.headers.contains_key(KEY_HEADER);
            if may_have_run { error.after_a_part() } else { error }
        })?;
        let gate = self.apis.gate();
        let caller = gate.let_in(head, sandbox.client.clone());
        check_owner(&caller)?;
        Ok((sandbox, caller))
    }

    /// Checks the head of a request: the names below the domain of `apis.e2b` are names of this machine, too.
    fn check(&self, head: &Parts, domain: Option<&str>) -> Result<(), E2bError> {
        let is_own =
            |host: &Authority| domain.is_some_and(|domain| registry::is_below(host.host(), domain));
        self.apis.gate().check_named(head, is_own).map_err(E2bError::refused)
    }

    /// How much a cell may print.
    fn max_output(&self) -> ByteSize {
        let now = self.now();
        now.setup.config.apis.e2b.as_ref().map_or(ByteSize::mib(0), |e2b| e2b.max_output)
    }
}

/// Checks that the owner of a sandbox still has a valid token.
///
/// # Errors
///
/// When it has none.
fn check_owner(caller: &Caller) -> Result<(), E2bError> {
    if caller.is_known() {
        return Ok(());
    }
    let message = "the owner of this sandbox has no valid token anymore";
    Err(E2bError::new(ErrorKind::Unauthenticated, message))
}

/// The domain below which sandboxes have names, if there is one.
fn domain(now: &Serving) -> Option<&str> {
    now.setup.config.apis.e2b.as_ref().and_then(|e2b| e2b.domain.as_deref())
}

/// Its paths.
pub(super) fn route(apis: &Apis) -> Router {
    let e2b = E2b::new(apis);
    Router::new()
        .merge(control::route(apis, &e2b))
        .merge(code::route(apis, &e2b))
        .merge(data::route(apis, &e2b))
        .route("/health", HEALTH.observed(apis, get(health).with_state(e2b)))
        .method_not_allowed_fallback(async |request: Request| nothing_here(&request.into_parts().0))
}

const HEALTH: Operation = Operation { method: "GET", route: "/health", name: "e2b.health" };

/// Whether a sandbox is there: 204, or 502 with the reason.
async fn health(State(e2b): State<E2b>, request: Request) -> Result<Response, E2bError> {
    let (head, _) = request.into_parts();
    let (sandbox, caller) = e2b.let_in(&head)?;
    sandbox.is_there(&head)?;
    Ok(caller.answer(StatusCode::NO_CONTENT.into_response()))
}

const NO_TEMPLATES: &str = "templates are not built through this API: an operator adds them in apis.e2b.templates, and images in languages";

/// Reasons why paths of E2B's are not offered, by their beginnings or ends.
const NOT_OFFERED: [(&str, &str); 11] = [
    ("/templates", NO_TEMPLATES),
    ("/v2/templates", NO_TEMPLATES),
    ("/v3/templates", NO_TEMPLATES),
    (
        "/volumes",
        "sandboxes have no volumes: write files into them, or use packages of the operator",
    ),
    ("/secrets", "sandboxes have no network, in which a secret could be used"),
    ("/snapshots", "sandboxes can't be copied"),
    ("/fork", "sandboxes can't be copied"),
    ("/network", "sandboxes have no network"),
    ("/logs", "programs' output is returned to the client that runs them, and kept nowhere"),
    ("/teams", "there are no teams: tokens are in http.tokens"),
    ("/api-keys", "an operator makes tokens with `isolator token --e2b NAME`"),
];

/// The answer to a path of E2B's that is not offered. It is never a 404 or 405, which SDKs take for a sandbox that is missing.
pub(super) fn nothing_here(request: &Parts) -> Response {
    let (method, path) = (&request.method, request.uri.path());
    let is_it = |(part, _): &&(&str, &str)| path.starts_with(part) || path.ends_with(part);
    let why = NOT_OFFERED.iter().find(is_it).map(|(_, why)| format!(": {why}"));
    let why = why.unwrap_or_default();
    E2bError::not_offered(format!("this server does not offer {method} {path}{why}"))
        .into_response()
}

/// The answer to a path that nothing has, if the host is one of the names below the domain of `apis.e2b`.
pub(super) fn nothing_at_host(now: &Serving, request: &Parts) -> Option<Response> {
    let domain = domain(now)?;
    let host = registry::host_of(&request.headers, &request.uri)?;
    if !registry::is_below(host, domain) {
        return None;
    }
    let port = registry::label(host, domain).map(|(port, _)| port);
    let closed = port.and_then(registry::closed_port);
    Some(closed.map_or_else(|| nothing_here(request), E2bError::into_response))
}
