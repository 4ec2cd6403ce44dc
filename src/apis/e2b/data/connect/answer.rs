//! Writes answers: one message, an error, or the envelopes of a stream.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use super::envelope::{COMPRESSED, END, PREFIX};
use super::head::{Encoding, Head, Shape};
use crate::apis::e2b::data::gzip;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::web::set_outcome;

/// Shorter messages are not compressed.
const WORTH_COMPRESSING: usize = 1024;

/// The answer to a unary call.
pub(in super::super) fn message(head: &Head, message: &impl Serialize) -> Response {
    match serde_json::to_vec(message) {
        Ok(json) if head.accepted == Encoding::Gzip && json.len() >= WORTH_COMPRESSING => {
            let mut answer = answer(StatusCode::OK, Shape::Unary, gzip::compressed(&json));
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            answer
        }
        Ok(json) => answer(StatusCode::OK, Shape::Unary, json),
        Err(error) => {
            let message = format!("the answer can't be written as JSON: {error}");
            self::error(Shape::Unary, &E2bError::new(ErrorKind::Internal, message).caused_by(error))
        }
    }
}

/// The answer to a call that failed before it was answered.
pub(in super::super) fn error(shape: Shape, error: &E2bError) -> Response {
    match shape {
        Shape::Unary => error.response_with(&error.connect_body()),
        // The errors of streams come in their last message.
        Shape::Stream => {
            let mut answer = answer(StatusCode::OK, shape, last(Some(error)));
            set_outcome(&mut answer, error.outcome());
            answer
        }
    }
}

/// The answer to a call with a stream.
pub(in super::super) fn stream(head: &Head, body: Body) -> Response {
    let mut answer = answer(StatusCode::OK, Shape::Stream, body);
    if head.accepted == Encoding::Gzip {
        let gzip = HeaderValue::from_static("gzip");
        answer.headers_mut().insert("connect-content-encoding", gzip);
    }
    answer
}

fn answer(status: StatusCode, shape: Shape, body: impl Into<Body>) -> Response {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(shape.content_type());
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}

/// The envelope of a message.
pub(in super::super) fn envelope(accepted: Encoding, json: &[u8]) -> Bytes {
    if accepted == Encoding::Gzip && json.len() >= WORTH_COMPRESSING {
        return with_prefix(COMPRESSED, &gzip::compressed(json));
    }
    with_prefix(0, json)
}

/// The last envelope of a stream.
pub(in super::super) fn last(error: Option<&E2bError>) -> Bytes {
    let end = match error {
        None => json!({}),
        Some(error) => json!({"error": error.connect_body()}),
    };
    with_prefix(END, end.to_string().as_bytes())
}

fn with_prefix(flags: u8, message: &[u8]) -> Bytes {
    let mut envelope = Vec::with_capacity(PREFIX + message.len());
    envelope.push(flags);
    // Messages are bounded far below this.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    envelope.extend_from_slice(&length.to_be_bytes());
    envelope.extend_from_slice(message);
    envelope.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_have_flags_and_length() {
        assert_eq!(&envelope(Encoding::Gzip, b"{}")[..], b"\x00\x00\x00\x00\x02{}");
        assert_eq!(&last(None)[..], b"\x02\x00\x00\x00\x02{}");
        let gone = E2bError::new(ErrorKind::NotFound, "it is \"gone\"");
        let error = br#"{"error":{"code":"not_found","message":"it is \"gone\""}}"#;
        assert_eq!(&last(Some(&gone))[5..], error);
        let long = vec![b' '; 5000];
        let packed = envelope(Encoding::Gzip, &long);
        assert!(packed[0] == COMPRESSED && packed.len() < 100);
        assert_eq!(gzip::decompressed(&packed[5..], 5000).unwrap(), long);
        assert_eq!(envelope(Encoding::Identity, &long).len(), 5005);
    }

    #[test]
    fn errors_of_streams_come_in_their_last_message() {
        let gone = E2bError::new(ErrorKind::NotFound, "why");
        assert_eq!(error(Shape::Unary, &gone).status(), 404);
        let stream = error(Shape::Stream, &gone);
        assert_eq!(stream.status(), 200);
        assert_eq!(stream.headers()[CONTENT_TYPE], "application/connect+json");
    }
}
