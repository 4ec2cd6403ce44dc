//! Requests of operators that take a server out of use, and the answers.

use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use crate::mcp::server::Server;

/// What a server that is out of use still does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// Requests that run, and requests that wait for their turn.
    pub running: usize,
    pub waiting: usize,
    /// Sessions that are open.
    pub sessions: usize,
}

impl Draining {
    /// Whether calls run or wait. Processes of E2B that no call waits for, and builds of packages, are none.
    pub(crate) const fn has_calls(&self) -> bool {
        self.running + self.waiting > 0
    }
}

/// Gives the notice. A page in a browser is no operator: it could send this request to any machine that its user reaches.
pub(super) fn answer(server: &Server, headers: &HeaderMap) -> Response {
    if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
        return (StatusCode::FORBIDDEN, "pages can't drain a server\n").into_response();
    }
    let notice = server.notice();
    if !notice.is_given() {
        tracing::info!(
            "an operator drains this server: it is not ready anymore, and serves calls until it is stopped"
        );
    }
    notice.give();
    let (running, waiting) = server.setup().pools.load();
    let draining = Draining { running, waiting, sessions: server.open_sessions() };
    let json = serde_json::to_vec(&draining).unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}
