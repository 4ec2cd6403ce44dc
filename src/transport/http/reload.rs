//! Requests of operators to load the configuration again, and the answers.

use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

/// Requests that can wait. One reload answers all that came before it began.
const MAX_WAITING: usize = 16;

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reloaded {
    /// The keys that have other values than before.
    pub changed: Vec<String>,
    /// Those that keep their former values until the server is started again.
    pub needs_restart: Vec<String>,
}

/// The same, or why nothing has changed.
pub(crate) type ReloadAnswer = Result<Reloaded, String>;

/// Asks for a reload; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Reload(mpsc::Sender<oneshot::Sender<ReloadAnswer>>);

/// Receives the requests.
pub(crate) type Asked = mpsc::Receiver<oneshot::Sender<ReloadAnswer>>;

/// A way to ask for reloads.
pub(crate) fn channel() -> (Reload, Asked) {
    let (sender, asked) = mpsc::channel(MAX_WAITING);
    (Reload(sender), asked)
}

impl Reload {
    /// Answers a request of an operator. A page in a browser is no operator: it could send this request to any machine that its
    /// user reaches.
    pub(super) async fn answer(self, headers: HeaderMap) -> Response {
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            return (StatusCode::FORBIDDEN, "pages can't reload a server\n").into_response();
        }
        let (sender, answer) = oneshot::channel();
        if self.0.try_send(sender).is_err() {
            let message = "too many have asked for a reload; try again in a moment\n";
            return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
        }
        match answer.await {
            Ok(Ok(reloaded)) => {
                let json = serde_json::to_vec(&reloaded).unwrap_or_default();
                ([(CONTENT_TYPE, "application/json")], json).into_response()
            }
            Ok(Err(why)) => (StatusCode::UNPROCESSABLE_ENTITY, why).into_response(),
            Err(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down\n").into_response()
            }
        }
    }
}
