//! Code: cells of a sandbox's contexts, whose output is streamed as it comes.

mod contexts;
mod execute;
mod lines;
mod outbox;

use axum::Router;
use axum::body::Body;
use axum::routing::{delete, get, post};
use serde_json::{Map, Value};

use super::E2b;
use super::error::{E2bError, ErrorKind};
use crate::apis::Apis;
use crate::apis::access::Caller;
use crate::apis::operation::Operation;
use crate::calls::CallError;
use axum::http::request::Parts;

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

/// The fields of a request, each of which is taken with its type.
struct Fields(Map<String, Value>);

impl Fields {
    /// Receives the body of a request; nothing is the same as no fields.
    async fn receive(
        caller: &mut Caller,
        head: &Parts,
        body: Body,
    ) -> Result<(Self, usize), E2bError> {
        let body = caller.receive(head, body, MAX_BODY).await.map_err(E2bError::refused)?;
        if body.is_empty() {
            return Ok((Self(Map::new()), 0));
        }
        match serde_json::from_slice(&body) {
            Ok(Value::Object(fields)) => Ok((Self(fields), body.len())),
            Ok(_) => Err(E2bError::invalid("body", "must be a JSON object")),
            Err(error) => {
                Err(E2bError::invalid("body", format!("is not JSON: {error}")).caused_by(error))
            }
        }
    }

    /// Takes a text. A field that is null is the same as one that is not there.
    fn text(&mut self, name: &str) -> Result<Option<String>, E2bError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(E2bError::invalid(name, "must be a text")),
        }
    }

    /// Takes an object of texts.
    fn texts(&mut self, name: &str) -> Result<Vec<(String, String)>, E2bError> {
        let fields = match self.0.remove(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(E2bError::invalid(name, "must be an object of texts")),
        };
        let text = |(key, value): (String, Value)| match value {
            Value::String(text) => Ok((key, text)),
            _ => Err(E2bError::invalid(&format!("{name}.{key}"), "must be a text")),
        };
        fields.into_iter().map(text).collect()
    }
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
