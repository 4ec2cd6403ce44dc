//! The API of E2B: sandboxes for agents, on sessions.
//!
//! The *control plane* creates and ends sandboxes. The *data plane* uses one: its processes and files, and its code. A sandbox is
//! a session, so it has its bounds, and is listed with the sessions of its client.

mod data;
pub(crate) mod error;
pub(crate) mod registry;
mod secret;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::response::{IntoResponse as _, Response};

use self::error::E2bError;
use self::registry::{Sandbox, Sandboxes};
use super::Apis;
use super::access::Caller;
use crate::calls::Serving;

pub(crate) use self::secret::FileQuery;

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
        let sandbox = self.sandboxes.of_data_request(head, domain)?;
        let caller = self.apis.gate().let_in(head, sandbox.client.clone());
        Ok((sandbox, caller))
    }

    /// Checks the head of a request: the names below the domain of `apis.e2b` are names of this machine, too.
    fn check(&self, head: &Parts, domain: Option<&str>) -> Result<(), E2bError> {
        let is_own =
            |host: &Authority| domain.is_some_and(|domain| registry::is_below(host.host(), domain));
        self.apis.gate().check_named(head, is_own).map_err(E2bError::refused)
    }
}

/// The domain below which sandboxes have names, if there is one.
fn domain(now: &Serving) -> Option<&str> {
    now.setup.config.apis.e2b.as_ref().and_then(|e2b| e2b.domain.as_deref())
}

/// Its paths.
pub(super) fn route(apis: &Apis) -> Router {
    let e2b = E2b::new(apis);
    data::route(apis, &e2b)
}

/// The answer to a path of E2B's that is not offered.
pub(super) fn nothing_here(request: &Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    E2bError::not_offered(format!("this server does not offer {method} {path}")).into_response()
}
