//! The API of E2B, for agents.

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;

use super::{Apis, Protocol};

/// Its paths.
pub(super) fn route(_apis: &Apis) -> Router {
    Router::new()
}

/// The answer to a path of E2B's that is not offered.
pub(super) fn nothing_here(path: &str) -> Response {
    let message = format!("this server does not offer {path}");
    Protocol::E2b.error(StatusCode::NOT_IMPLEMENTED, &message)
}
