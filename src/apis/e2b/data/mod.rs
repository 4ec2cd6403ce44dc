//! The processes and files of a sandbox, as E2B's clients use them: two services of Connect's protocol, and files over HTTP.
//!
//! Everything here only translates: the sandbox's [agent](isolator_pool::pool::session::agent) does the work, and waits when a client does
//! not read. [`call`] lets a request in; [`connect`] has the protocol and [`messages`] its messages; [`process`] and [`filesystem`] have the
//! methods, and [`files`] the transfers.

mod call;
mod connect;
mod deadlines;
mod files;
mod filesystem;
mod gzip;
mod messages;
mod process;
mod watchers;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use self::deadlines::Deadlines;
use self::watchers::Watchers;
use super::E2b;
use super::error::E2bError;
use crate::apis::Apis;
use crate::apis::operation::Operation;

static HEALTH: Operation = Operation { method: "GET", route: "/health", name: "health" };

/// The parts of a sandbox that only requests to its processes and files need.
#[derive(Default)]
pub(super) struct OfSandbox {
    deadlines: Deadlines,
    watchers: Watchers,
}

/// The paths.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    let health = HEALTH.observed(apis, get(health).with_state(e2b.clone()));
    process::route(apis, e2b)
        .merge(filesystem::route(apis, e2b))
        .merge(files::route(apis, e2b))
        .route("/health", health)
}

/// Says whether a sandbox is there.
async fn health(State(e2b): State<E2b>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let found = e2b.let_in(&parts).and_then(|(sandbox, _)| sandbox.session());
    match found {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.into_response(),
    }
}

/// The error for a method of a service, or of HTTP, that is not there.
fn no_such_method(request: &Request) -> E2bError {
    let (method, path) = (request.method(), request.uri().path());
    E2bError::not_offered(format!("a sandbox does not offer {method} {path}"))
}
