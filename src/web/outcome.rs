//! The outcome of a call on answers over HTTP: a header with its word, which code far from the head of an answer can set.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use tokio::sync::Notify;

use crate::calls::CallOutcome;

/// The header that says whether a call has run: `not-run`, `ran` or `unknown`.
const OUTCOME: HeaderName = HeaderName::from_static("isolator-outcome");

/// Adds the outcome to an answer: as the header, and as an extension.
pub(crate) fn set_outcome(response: &mut Response, outcome: CallOutcome) {
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.as_str()));
    response.extensions_mut().insert(outcome);
}

/// The outcome of a call that is served elsewhere, for the head of its answer; cheap to clone. A transport adds it to a request,
/// and the first outcome counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutcomeSlot(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    outcome: OnceLock<CallOutcome>,
    set: Notify,
}

impl OutcomeSlot {
    /// Says the outcome.
    pub(crate) fn set(&self, outcome: CallOutcome) {
        let _ = self.0.outcome.set(outcome);
        self.0.set.notify_one();
    }

    /// The outcome, if it is known.
    pub(crate) fn get(&self) -> Option<CallOutcome> {
        self.0.outcome.get().copied()
    }

    /// Waits until it is known. Only one task may wait. A request that is no call has no outcome.
    #[allow(dead_code, reason = "for heads that wait for the outcome")]
    pub(crate) async fn known(&self) -> CallOutcome {
        loop {
            if let Some(outcome) = self.get() {
                return outcome;
            }
            self.0.set.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_head_of_an_answer_learns_the_first_outcome() {
        let slot = OutcomeSlot::default();
        assert_eq!(slot.get(), None);
        let set = async {
            tokio::task::yield_now().await;
            slot.set(CallOutcome::Unknown);
            slot.set(CallOutcome::Ran);
        };
        let (known, ()) = tokio::join!(slot.known(), set);
        assert_eq!(known, CallOutcome::Unknown);
        assert_eq!(slot.get(), Some(CallOutcome::Unknown));
    }
}
