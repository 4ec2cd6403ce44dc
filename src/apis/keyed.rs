//! Requests of the APIs with an idempotency key: one that is sent again gets the answer of the first.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::future::BoxFuture;
use isolator_pool::pool::admission::Client;

use super::Protocol;
use super::access::Caller;
use super::operation::{HowServed, Operation};
use super::unserved::gone;
use crate::audit::Note;
use crate::calls::idempotency::{
    Asked, BALANCER_GRACE, Claim, KEY_HEADER, Key, KeyRefusal, Made, Once, REPEATED, RequestDigest,
};
use crate::calls::{CallError, CallOutcome, Serving};
use crate::request::arguments::InvalidArgument;
use crate::web::set_outcome;

/// A request with a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed {
    key: Key,
    digest: RequestDigest,
    operation: &'static Operation,
}

/// The key of a request, if it has one.
///
/// # Errors
///
/// When it can't be used.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<Key>, InvalidArgument> {
    let field = "Idempotency-Key";
    let Some(value) = headers.get(KEY_HEADER) else { return Ok(None) };
    let key = Key::in_header(value.as_bytes());
    key.map(Some).map_err(|error| InvalidArgument::new(field, error.to_string()))
}

/// An answer that is kept.
#[derive(Debug)]
struct Kept {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// How the first request was served.
    served: Option<HowServed>,
}

impl Keyed {
    /// A request of an operation, with the names of what it is about and its body.
    pub(super) fn new(
        key: Key,
        operation: &'static Operation,
        names: &[&str],
        body: &[u8],
    ) -> Self {
        let digest = RequestDigest::begin(operation.name, names).body(body);
        Self { key, digest, operation }
    }

    fn asked(&self, client: &Client) -> Asked {
        Asked { client: client.clone(), key: self.key, digest: self.digest }
    }

    /// Claims the key for an answer that is a stream. The request's line in the audit log says if it is refused.
    ///
    /// # Errors
    ///
    /// When it was used before.
    pub(super) fn claim(
        &self,
        serving: &Serving,
        client: &Client,
        note: &mut Note,
    ) -> Result<Claim, KeyRefusal> {
        let claim = serving.calls.idempotency().claim(self.asked(client));
        claim.inspect_err(|_| note.answered("error"))
    }

    fn note(&self, serving: &Serving, client: &Client, status: &'static str) {
        serving.setup.audit.begin(client, self.operation.name).answered(status);
    }
}

/// Answers a request: with `serve`, or, if it has a key that was used before, with the answer of the first one with it.
pub(super) async fn answer<Serve>(
    protocol: Protocol,
    serving: &Serving,
    mut caller: Caller,
    keyed: Option<Keyed>,
    serve: Serve,
) -> Response
where
    Serve: for<'a> FnOnce(&'a Caller) -> BoxFuture<'a, Response> + Send + 'static,
{
    let Some(keyed) = keyed else {
        let response = serve(&caller).await;
        return caller.answer(response);
    };
    // A repeated answer is noted, too.
    if let Some(why) = serving.setup.audit.refusal() {
        let outcome = CallError::NoAudit(why).outcome();
        let mut response = protocol.error(StatusCode::SERVICE_UNAVAILABLE, why);
        set_outcome(&mut response, outcome);
        return caller.answer(response);
    }
    let in_task = caller.for_task();
    let run = async move {
        let response = serve(&in_task).await;
        let outcome = response.extensions().get().copied().unwrap_or(CallOutcome::Unknown);
        let answer = Kept::of(response).await;
        let weight = answer.weight();
        Made { answer, weight, outcome }
    };
    let asked = keyed.asked(&caller.client);
    let once = serving.calls.idempotency().once(asked, BALANCER_GRACE, run);
    let once = tokio::select! {
        once = once => once,
        () = caller.gone() => return caller.answer(gone(protocol)),
    };
    let response = match once {
        Ok(Once { answer, is_repeated: false }) => answer.response(),
        Ok(Once { answer, .. }) => {
            keyed.note(serving, &caller.client, REPEATED);
            let mut response = answer.response();
            // The trace of the first request has it.
            response.extensions_mut().remove::<HowServed>();
            response
        }
        Err(refusal) => {
            keyed.note(serving, &caller.client, "error");
            refused(protocol, refusal)
        }
    };
    caller.answer(response)
}

/// The answer to a request whose key does not lead to an answer.
pub(super) fn refused(protocol: Protocol, refusal: KeyRefusal) -> Response {
    let outcome = refusal.outcome();
    let mut response = protocol.error(status(refusal), &refusal.to_string());
    if matches!(refusal, KeyRefusal::TooManyWaiting(_) | KeyRefusal::TooManyRunning(_)) {
        response.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    set_outcome(&mut response, outcome);
    response
}

const fn status(refusal: KeyRefusal) -> StatusCode {
    match refusal {
        KeyRefusal::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
        KeyRefusal::TooManyRunning(_) => StatusCode::TOO_MANY_REQUESTS,
        KeyRefusal::NotKept
        | KeyRefusal::Ended
        | KeyRefusal::Streaming
        | KeyRefusal::TooManyWaiting(_) => StatusCode::CONFLICT,
    }
}

impl Kept {
    /// An answer whose body is in memory.
    async fn of(response: Response) -> Self {
        let served = response.extensions().get().cloned();
        let (head, body) = response.into_parts();
        let (status, headers) = (head.status, head.headers);
        match to_bytes(body, usize::MAX).await {
            Ok(body) => Self { status, headers, body, served },
            Err(error) => {
                tracing::error!(%error, "an answer could not be read to be kept");
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self { status, headers: HeaderMap::new(), body: Bytes::new(), served }
            }
        }
    }

    fn weight(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.body.len() + headers.sum::<usize>()
    }

    fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        if let Some(served) = &self.served {
            response.extensions_mut().insert(served.clone());
        }
        response
    }
}
