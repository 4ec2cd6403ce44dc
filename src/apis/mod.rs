//! The APIs of other systems, on the port of MCP: each translates its requests into the [jobs](crate::calls) that tools have, and
//! their results into its own words. Nothing here knows MCP.
//!
//! A request passes the [gate](access): its host, its client, its size. An API that is off answers how to turn it on.

pub(crate) mod access;
mod body;
mod e2b;
mod keyed;
pub(crate) mod operation;
mod piston;
mod programs;
mod sandbox_fusion;
mod unserved;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde_json::json;

use self::access::Gate;
use crate::calls::Serving;
use crate::config::Config;
use crate::web::{Refused, discard, discard_rest, set_outcome};

/// The APIs of a listener; cheap to clone.
#[derive(Clone)]
pub(crate) struct Apis {
    now: Arc<dyn Fn() -> Serving + Send + Sync>,
    gate: Gate,
    versions: Arc<piston::Versions>,
}

impl Apis {
    /// Serves with what `now` has when a request begins.
    pub(crate) fn new(now: impl Fn() -> Serving + Send + Sync + 'static, gate: Gate) -> Self {
        Self { now: Arc::new(now), gate, versions: Arc::default() }
    }

    /// Everything that serves requests which begin now.
    pub(crate) fn now(&self) -> Serving {
        (self.now)()
    }

    /// The versions of languages, as far as they are known.
    fn versions(&self) -> &piston::Versions {
        &self.versions
    }

    /// The admission of requests.
    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }
}

/// An API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// SandboxFusion, for computing rewards.
    SandboxFusion,
    /// Piston, for computing rewards.
    Piston,
    /// E2B, for agents.
    E2b,
}

/// Beginnings of the paths of each API: a path has one of them as its own beginning, up to a slash or its end.
const PATHS: [(Protocol, &[&str]); 3] = [
    (
        Protocol::SandboxFusion,
        &["/run_code", "/run_jupyter", "/submit", "/get_prompts", "/get_prompt_by_id"],
    ),
    (Protocol::Piston, &["/api/v2"]),
    (
        Protocol::E2b,
        &[
            "/sandboxes",
            "/v2/sandboxes",
            "/templates",
            "/v2/templates",
            "/v3/templates",
            "/volumes",
            "/secrets",
            "/snapshots",
            "/teams",
            "/api-keys",
            "/access-tokens",
            "/nodes",
            "/events",
            "/process.Process",
            "/filesystem.Filesystem",
            "/files",
            "/health",
            "/metrics",
            "/envs",
            "/init",
            "/execute",
            "/contexts",
        ],
    ),
];

impl Protocol {
    /// The API that has a path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let is_below = |start: &&str| {
            path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        PATHS.into_iter().find(|(_, starts)| starts.iter().any(is_below)).map(|it| it.0)
    }

    /// Its name, for people.
    const fn name(self) -> &'static str {
        match self {
            Self::SandboxFusion => "SandboxFusion",
            Self::Piston => "Piston",
            Self::E2b => "E2B",
        }
    }

    /// Whether the configuration turns it on.
    const fn is_on(self, config: &Config) -> bool {
        match self {
            Self::SandboxFusion => config.apis.sandbox_fusion.is_some(),
            Self::Piston => config.apis.piston.is_some(),
            Self::E2b => config.apis.e2b.is_some(),
        }
    }

    /// The key below `apis` that turns it on.
    const fn key(self) -> &'static str {
        match self {
            Self::SandboxFusion => "sandboxFusion",
            Self::Piston => "piston",
            Self::E2b => "e2b",
        }
    }

    /// An error in the form of the API.
    pub(crate) fn error(self, status: StatusCode, message: &str) -> Response {
        let body = match self {
            Self::SandboxFusion => json!({ "detail": message }),
            Self::Piston => json!({ "message": message }),
            Self::E2b => e2b::error::body(status, message),
        };
        answer(status, &body)
    }

    /// A refusal in the form of the API.
    pub(crate) fn refusal(self, refused: &Refused) -> Response {
        let mut message = refused.to_string();
        if *refused == Refused::NoToken {
            let key = self.key();
            message = format!(
                "a token is required: send it as Authorization: Bearer or as X-API-Key; the operator of this server can name \
                 addresses that need none (apis.{key}.openTo)"
            );
        }
        let mut response = self.error(refused.status(), &message);
        refused.add_headers(response.headers_mut());
        set_outcome(&mut response, refused.outcome());
        response
    }
}

/// An answer in JSON.
pub(crate) fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    let json = [(CONTENT_TYPE, "application/json")];
    match serde_json::to_vec(body) {
        Ok(body) => (status, json, Body::from(body)).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The paths of all APIs. One that is off answers how to turn it on.
pub(crate) fn route(apis: &Apis) -> Router {
    let all = e2b::route(apis).merge(sandbox_fusion::route(apis)).merge(piston::route(apis));
    // A method that a path does not have is refused, too.
    all.route_layer(from_fn_with_state(apis.clone(), if_on)).layer(from_fn(discard_rest))
}

/// The answer to a path that no interface has. `others` says what there is besides the APIs.
pub(crate) async fn nothing_here(apis: &Apis, request: Request, others: &'static str) -> Response {
    let (parts, mut body) = request.into_parts();
    let answer = refusal_of_path(apis, &parts, others);
    discard(&mut body).await;
    answer
}

fn refusal_of_path(apis: &Apis, request: &Parts, others: &'static str) -> Response {
    let now = apis.now();
    // Programs behind the ports of sandboxes have paths of their own.
    if let Some(answer) = e2b::nothing_at_host(&now, request) {
        return answer;
    }
    let Some(protocol) = Protocol::of_path(request.uri.path()) else {
        return (StatusCode::NOT_FOUND, others).into_response();
    };
    off(protocol, &now.setup.config).unwrap_or_else(|| match protocol {
        Protocol::E2b => e2b::nothing_here(request),
        Protocol::Piston => piston::nothing_here(request.uri.path()),
        Protocol::SandboxFusion => sandbox_fusion::nothing_here(),
    })
}

/// Answers a request to an API that is off.
async fn if_on(State(apis): State<Apis>, request: Request, next: Next) -> Response {
    let protocol = Protocol::of_path(request.uri().path());
    match protocol.and_then(|protocol| off(protocol, &apis.now().setup.config)) {
        Some(answer) => answer,
        None => next.run(request).await,
    }
}

/// The answer of an API that is off; `None` if it is on.
fn off(protocol: Protocol, config: &Config) -> Option<Response> {
    if protocol.is_on(config) {
        return None;
    }
    let (name, key) = (protocol.name(), protocol.key());
    let message = format!(
        "the API of {name} is off: the operator of this server turns it on with \"apis\": {{\"{key}\": {{}}}} in its configuration"
    );
    Some(protocol.error(StatusCode::NOT_FOUND, &message))
}
