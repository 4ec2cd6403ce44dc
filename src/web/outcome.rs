//! The outcome of a call on answers over HTTP: a header with its word, which code far from the head of an answer can set.

use std::sync::{Arc, OnceLock};

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use crate::calls::{Again, CallOutcome};

/// The header that says whether a call has run: `not-run`, `ran` or `unknown`.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("isolator-outcome");

/// The header of requests that asks for a status with the value `status`.
const NOT_RUN: HeaderName = HeaderName::from_static("isolator-not-run");

/// Adds the outcome to an answer: as the header, and as an extension.
pub(crate) fn set_outcome(response: &mut Response, outcome: CallOutcome) {
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.as_str()));
    response.extensions_mut().insert(outcome);
}

/// Whether a request asks for a status of its own if its call does not run. Clients of MCP throw on every status but 200, so
/// only such a request gets another one: a load balancer asks for it, sends a refused call to another server, and sets the status
/// back if none serves it.
pub(crate) fn asks_for_status(headers: &HeaderMap) -> bool {
    headers.get(NOT_RUN).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"status"))
}

/// Gives the answer to such a request the status of a refusal, if its call did not run and another server may serve it: 429 if the
/// client alone is the reason, otherwise 503. The body stays.
pub(crate) fn set_status(response: &mut Response, outcome: CallOutcome) {
    let (status, seconds) = match outcome {
        CallOutcome::NotRun(Again::Later(seconds)) => (StatusCode::SERVICE_UNAVAILABLE, seconds),
        CallOutcome::NotRun(Again::AfterOwn(seconds)) => (StatusCode::TOO_MANY_REQUESTS, seconds),
        CallOutcome::NotRun(Again::Here(_) | Again::Never)
        | CallOutcome::Ran
        | CallOutcome::Unknown => return,
    };
    *response.status_mut() = status;
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
}

/// The outcome of a call that is served elsewhere, for the head of its answer; cheap to clone. A transport adds it to a request,
/// and the first outcome counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutcomeSlot(Arc<OnceLock<CallOutcome>>);

impl OutcomeSlot {
    /// Says the outcome.
    pub(crate) fn set(&self, outcome: CallOutcome) {
        let _ = self.0.set(outcome);
    }

    /// The outcome, if it is known.
    pub(crate) fn get(&self) -> Option<CallOutcome> {
        self.0.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_another_server_may_serve_has_a_status() {
        for (again, status) in [
            (Again::Later(2), 503),
            (Again::AfterOwn(2), 429),
            (Again::Here(2), 200),
            (Again::Never, 200),
        ] {
            let mut response = Response::new("text".into());
            set_status(&mut response, CallOutcome::NotRun(again));
            assert_eq!(response.status(), status, "{again:?}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), status != 200);
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

    #[test]
    fn the_first_outcome_counts() {
        let slot = OutcomeSlot::default();
        assert_eq!(slot.get(), None);
        slot.set(CallOutcome::Unknown);
        slot.set(CallOutcome::Ran);
        assert_eq!(slot.get(), Some(CallOutcome::Unknown));
    }
}
