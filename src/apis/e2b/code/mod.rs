//! Code: cells of a sandbox's contexts, whose output is streamed as it comes.

mod contexts;
mod execute;
mod lines;
mod outbox;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::routing::{delete, get, post};
use serde::de::DeserializeOwned;

use super::E2b;
use super::error::{E2bError, ErrorKind};
use crate::apis::access::Caller;
use crate::apis::operation::Operation;
use crate::apis::{Apis, body};
use crate::calls::CallError;

/// The largest body of a request.
const MAX_BODY: usize = 16 << 20;

const EXECUTE: Operation = Operation { method: "POST", route: "/execute", name: "e2b.execute" };
const LIST: Operation = Operation { method: "GET", route: "/contexts", name: "e2b.list_contexts" };
const CREATE: Operation =
    Operation { method: "POST", route: "/contexts", name: "e2b.create_context" };
const RESTART: Operation =
    Operation { method: "POST", route: "/contexts/{id}/restart", name: "e2b.restart_context" };
const REMOVE: Operation =
    Operation { method: "DELETE", route: "/contexts/{id}", name: "e2b.remove_context" };

/// Its paths.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    let state = || e2b.clone();
    let execute = EXECUTE.observed(apis, post(execute::execute).with_state(state()));
    let list = LIST.observed(apis, get(contexts::list).with_state(state()));
    let create = CREATE.observed(apis, post(contexts::create).with_state(state()));
    let restart = RESTART.observed(apis, post(contexts::restart).with_state(state()));
    let remove = REMOVE.observed(apis, delete(contexts::remove).with_state(state()));
    Router::new()
        .route("/execute", execute)
        .route("/contexts", list.merge(create))
        .route("/contexts/{id}", remove)
        .route("/contexts/{id}/restart", restart)
}

/// Receives the fields of a request, and its body; one that is empty has no fields.
///
/// # Errors
///
/// When the body does not arrive, or a field can't be used.
async fn receive<T: DeserializeOwned>(
    caller: &mut Caller,
    head: &Parts,
    body: Body,
) -> Result<(T, Bytes), E2bError> {
    let body = caller.receive(head, body, MAX_BODY).await.map_err(E2bError::refused)?;
    Ok((body::read_or_empty(&body)?, body))
}

/// The error of a call; something that is named and not there is a 404, as these clients expect it.
fn of_call(error: CallError) -> E2bError {
    let kind = match &error {
        CallError::Invalid(invalid) if invalid.field == "context_id" => Some(ErrorKind::NotFound),
        _ => None,
    };
    match kind {
        Some(kind) => E2bError::new(kind, error.to_string()).caused_by(error),
        None => E2bError::of_call(error),
    }
}
