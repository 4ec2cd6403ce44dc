//! Files over HTTP: `GET` and `POST` of `/files`. They pass through in pieces, and the sender of a file waits for its receiver.

mod parts;
mod read;
mod write;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use super::call::{DataCall, check_user};
use crate::apis::Apis;
use crate::apis::e2b::error::E2bError;
use crate::apis::e2b::{E2b, FileQuery};
use crate::apis::operation::Operation;

static READ: Operation = Operation { method: "GET", route: "/files", name: "e2b.read_file" };
static WRITE: Operation = Operation { method: "POST", route: "/files", name: "e2b.write_file" };

/// The path.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    let read = READ.observed(apis, get(serve_read).with_state(e2b.clone()));
    let write = WRITE.observed(apis, post(serve_write).with_state(e2b.clone()));
    Router::new().route("/files", read.merge(write))
}

async fn serve_read(State(e2b): State<E2b>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    // The body of the answer to HEAD is not sent.
    let is_head = parts.method == Method::HEAD;
    let (mut call, query) = match entered(&e2b, parts) {
        Ok(entered) => entered,
        Err(error) => return error.into_response(),
    };
    let read = read::serve(&mut call, query, is_head).await;
    call.caller.answer(read.unwrap_or_else(E2bError::into_response))
}

async fn serve_write(State(e2b): State<E2b>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (mut call, query) = match entered(&e2b, parts) {
        Ok(entered) => entered,
        Err(error) => return error.into_response(),
    };
    let written = write::serve(&mut call, query, body).await;
    call.caller.answer(written.unwrap_or_else(E2bError::into_response))
}

fn entered(e2b: &E2b, parts: Parts) -> Result<(DataCall, FileQuery), E2bError> {
    let query = FileQuery::read(parts.uri.query().unwrap_or_default())?;
    check_user(query.username.as_deref())?;
    Ok((DataCall::enter(e2b, parts)?, query))
}
