//! Calls with idempotency keys: a client that sends one again gets the answer of the first.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use isolator_pool::pool::admission::Client;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde_json::Value;

use super::answers::{Answers, NoSuchTool, ToolCall};
use super::caller::SESSION_HEADER;
use super::render::{Answer, invalid};
use crate::audit::Note;
use crate::calls::idempotency::{
    Asked, BALANCER_GRACE, CLIENT_GRACE, KEY_HEADER, Key, KeyRefusal, Made, Once, REPEATED,
    RequestDigest,
};
use crate::calls::{Again, CallOutcome, ToolName};
use crate::request::arguments::InvalidArgument;

/// The key of a request's `_meta` with its idempotency key.
const KEY: &str = "isolator/idempotencyKey";

/// The fields that are named when a key can't be used.
const FIELD: &str = "_meta[\"isolator/idempotencyKey\"]";
const HEADER: &str = "Idempotency-Key";

/// The key that a call was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallKey {
    key: Key,
    /// How long the program goes on without a caller.
    grace: Duration,
}

impl CallKey {
    /// The key of a request: that in its `_meta`, or else that in a header. A load balancer that adds the header does not read the
    /// body, in which the client may have one.
    ///
    /// # Errors
    ///
    /// When it can't be used.
    pub(super) fn of(
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<Self>, InvalidArgument> {
        let parts = context.extensions.get::<Parts>();
        let in_header = parts.and_then(|parts| parts.headers.get(KEY_HEADER));
        let in_meta = context.meta.get(KEY);
        let (read, field, grace) = match (in_meta, in_header) {
            (Some(Value::String(key)), _) => (Key::read(key), FIELD, CLIENT_GRACE),
            (Some(_), _) => return Err(InvalidArgument::new(FIELD, "must be a text")),
            (None, Some(key)) => (Key::in_header(key.as_bytes()), HEADER, BALANCER_GRACE),
            (None, None) => return Ok(None),
        };
        let key = read.map_err(|error| InvalidArgument::new(field, error.to_string()))?;
        // A call over a session of the protocol has gone on for as long already when it is cancelled, and a host on
        // standard input means it.
        let is_of_session = parts.is_none_or(|parts| parts.headers.contains_key(SESSION_HEADER));
        let grace = if is_of_session { Duration::ZERO } else { grace };
        Ok(Some(Self { key, grace }))
    }
}

/// The answer to a call with a key that can't be used, whose line in the audit log is `note`.
fn unusable(tool: &str, error: &InvalidArgument, mut note: Note) -> Answer {
    let tool = ToolName::named(tool).unwrap_or(ToolName::ExecuteCode);
    let answer = invalid(tool, error).with_outcome(CallOutcome::NotRun(Again::Never));
    note.answered(answer.status);
    answer
}

impl Answers {
    /// Answers a call as [`answer`](Self::answer) does, or, if it has a key, once for all calls with that. `key` is what
    /// [`CallKey::of`] has found.
    ///
    /// # Errors
    ///
    /// When there is no such tool.
    pub(super) async fn answer_keyed(
        &self,
        key: Result<Option<CallKey>, InvalidArgument>,
        asked: ToolCall,
    ) -> Result<Answer, NoSuchTool> {
        match key {
            // A call that is refused because the audit log can't be written has no key, either.
            Ok(Some(key)) if self.audit_refusal().is_none() => {
                Box::pin(self.answer_once(key, asked)).await
            }
            Ok(_) => {
                let answer = self.answer(asked).await;
                answer.map(Arc::unwrap_or_clone)
            }
            Err(error) => {
                let note = self.begin_note(&asked.call.client, &asked.name);
                Ok(unusable(&asked.name, &error, note))
            }
        }
    }

    /// Answers a call with a key as [`answer`](Self::answer) does if it is the first with it, and else with the answer of the first.
    async fn answer_once(&self, key: CallKey, asked: ToolCall) -> Result<Answer, NoSuchTool> {
        // Only calls of commands have options.
        let own = asked.options.as_ref().map(Value::to_string).unwrap_or_default();
        let (name, client) = (asked.name.clone(), asked.call.client.clone());
        let digest = RequestDigest::begin("tools/call", &[&name, &own]).json(&asked.arguments);
        let of_key = Asked { client: client.clone(), key: key.key, digest };
        let answers = self.clone();
        let run = async move {
            let answer = answers.answer(asked).await;
            let outcome =
                answer.as_ref().map_or(CallOutcome::NotRun(Again::Never), |it| it.outcome);
            let weight = answer.as_ref().map_or(0, |answer| answer.weight);
            Made { answer, weight, outcome }
        };
        let once = self.calls().idempotency().once(of_key, key.grace, Box::pin(run)).await;
        let (answer, is_repeated) = match once {
            Ok(Once { answer, is_repeated }) => ((*answer).clone()?, is_repeated),
            Err(refusal) => return Ok(self.refuse(refusal, &name, &client)),
        };
        let answer = Arc::unwrap_or_clone(answer);
        if !is_repeated {
            return Ok(answer);
        }
        self.begin_note(&client, &name).answered(REPEATED);
        // The trace of the first call has its receipt.
        Ok(Answer { receipt: None, ..answer })
    }

    fn refuse(&self, refusal: KeyRefusal, name: &str, client: &Client) -> Answer {
        let mut note = self.begin_note(client, name);
        if refusal == KeyRefusal::OtherRequest {
            return unusable(name, &InvalidArgument::new(FIELD, refusal.to_string()), note);
        }
        let answer = Answer::failure(refusal.to_string(), "error");
        note.answered(answer.status);
        answer.with_outcome(refusal.outcome())
    }
}
