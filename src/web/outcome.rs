//! Headers that say whether a call has run, and the status of one that did not and that another server may serve.
//!
//! Clients of MCP throw on every status but 200, so only a request that asks for it gets another one: a load balancer adds
//! `Isolator-Not-Run: status`, sends a refused call to another server, and sets the status back if none serves it.

use axum::http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use crate::calls::{Elsewhere, HasRun};

/// The header of answers that says whether the program of the call has run.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("isolator-outcome");

/// The header of requests that asks for a status.
const NOT_RUN: HeaderName = HeaderName::from_static("isolator-not-run");

/// Whether a request asks for a status of its own if its call does not run.
pub(crate) fn asks_for_status(headers: &HeaderMap) -> bool {
    headers.get(NOT_RUN).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"status"))
}

/// Adds the header to an answer.
pub(crate) fn add_outcome(headers: &mut HeaderMap, has_run: HasRun) {
    headers.insert(OUTCOME, HeaderValue::from_static(has_run.as_str()));
}

impl Elsewhere {
    /// The status of the refusal: 429 if the client alone is the reason, otherwise 503.
    pub(crate) const fn status(self) -> StatusCode {
        if self.is_own_share {
            StatusCode::TOO_MANY_REQUESTS
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// Gives an answer the status of a refusal, and says when to try again. Its body stays.
pub(crate) fn refuse(response: &mut Response, refused: Elsewhere) {
    *response.status_mut() = refused.status();
    response.headers_mut().insert(RETRY_AFTER, refused.seconds().into());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_has_a_status_and_a_time_and_keeps_its_body() {
        for (is_own_share, status) in [(false, 503), (true, 429)] {
            let mut response = Response::new("text".into());
            let retry_after = Duration::from_millis(1500);
            refuse(&mut response, Elsewhere { is_own_share, retry_after });
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()[RETRY_AFTER], "2");
        }
    }

    #[test]
    fn only_the_word_status_asks_for_one() {
        for (value, asks) in [("status", true), ("STATUS", true), ("", false), ("200", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(NOT_RUN, HeaderValue::from_static(value));
            assert_eq!(asks_for_status(&headers), asks, "{value}");
        }
        assert!(!asks_for_status(&HeaderMap::new()));
    }
}
