//! Requests from web pages, and what their browsers learn (CORS).
//!
//! A browser sends the page's origin with each request. Before most of them it asks whether the page may send it, in a
//! preflight, which has no token. To a page that can't call the server refuses everything before it reads a body.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::connections::NODE;
use crate::calls::idempotency::KEY_HEADER;
use crate::current::Current;
use crate::web::{OUTCOME, Rules};

/// The headers of requests: those of all protocol revisions, and of streams that are resumed.
const SENT: [HeaderName; 11] = [
    AUTHORIZATION,
    CONTENT_TYPE,
    ACCEPT,
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("mcp-param-session"),
    HeaderName::from_static("mcp-param-handle"),
    HeaderName::from_static(KEY_HEADER),
];

/// The headers of answers that pages can read, besides the few that they always can.
const READ: [HeaderName; 6] = [
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("isolator-receipt"),
    NODE,
    OUTCOME,
    WWW_AUTHENTICATE,
    RETRY_AFTER,
];

/// How long a browser remembers the answer to a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(60 * 60);

/// Refuses requests from pages that can't call. Their browsers don't show them the answer.
pub(super) async fn refuse_others(
    State(rules): State<Current<Rules>>,
    request: Request,
    next: Next,
) -> Response {
    let rules = rules.get();
    let origins = &rules.origins;
    let mut given = request.headers().get_all(ORIGIN).iter();
    match given.find(|origin| !origins.allow(origin)) {
        None => next.run(request).await,
        Some(origin) => {
            tracing::debug!(?origin, "a page was refused; http.allowedOrigins has no such origin");
            let message = "pages of this origin can't call; see http.allowedOrigins\n";
            (StatusCode::FORBIDDEN, message).into_response()
        }
    }
}

/// Answers preflights, and adds to each other answer, whatever its status, what lets the page read it.
///
/// Cookies are not allowed: clients authenticate with a token, which the page has to know.
pub(super) fn layer(rules: Current<Rules>) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| rules.get().origins.allow(origin)))
        .allow_methods([Method::POST, Method::GET, Method::DELETE])
        .allow_headers(SENT)
        .expose_headers(READ)
        .max_age(PREFLIGHT_AGE)
        // Chromium before version 142 asks for this when a public page calls a private address. Newer ones ask their
        // user instead.
        .allow_private_network(true)
}
