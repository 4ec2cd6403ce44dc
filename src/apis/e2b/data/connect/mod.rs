//! Connect's protocol for remote calls, in JSON only, as E2B's clients speak it.
//!
//! A unary call is a POST with a JSON object, answered by one. A call with a stream sends [envelopes](envelope) in the direction
//! in which it streams. [`head`] reads the headers of a call, [`answer`] writes answers, and [`json`] reads values in the forms that the
//! JSON of protocol buffers allows.

pub(super) mod answer;
pub(super) mod envelope;
pub(super) mod head;
pub(super) mod json;

use crate::apis::body::MAX_VALUES;
use crate::apis::e2b::error::{E2bError, ErrorKind};

/// Longest message of a client, in bytes. Its file transfers don't come as messages.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// Why a call is not one of this protocol, or goes beyond its bounds.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("Content-Type is {0:?}: this server speaks Connect in JSON, so send {expected}", expected = .1.content_type())]
    ContentType(String, head::Shape),
    #[error("Connect-Protocol-Version is {0:?}: this server speaks version 1")]
    Version(String),
    #[error("{header} is {value:?}: {advice}")]
    Header { header: &'static str, value: String, advice: &'static str },
    #[error("{header} is {value:?}: this server reads identity and gzip")]
    Encoding { header: &'static str, value: String },
    #[error("the message is not valid JSON for this method: {0}")]
    Json(#[from] serde_json::Error),
    #[error(
        "a message has {length} bytes, and can have {MAX_MESSAGE}: send it in several messages"
    )]
    TooLarge { length: u64 },
    #[error("a message has more than {MAX_VALUES} keys and values: send it in several messages")]
    TooManyValues,
    #[error(
        "the envelope of a message has the flags {0:#04x}: only 0x01 (compressed) and 0x02 (end of stream) are known"
    )]
    Flags(u8),
    #[error("a message is marked as compressed, but the request has no Connect-Content-Encoding")]
    NotEncoded,
    #[error("the request ends after {received} of the {announced} bytes of a message")]
    Truncated { received: usize, announced: u64 },
    #[error("the request has no message, and this method needs one")]
    NoMessage,
    #[error("the request has more than one message, and this method takes one")]
    SecondMessage,
    #[error("the compressed message can't be decompressed: {0}")]
    Gzip(#[source] std::io::Error),
    #[error("the request could not be received: {0}")]
    Receive(#[source] axum::Error),
    #[error("the requests being served hold too many bytes at this moment: try again in a moment")]
    NoRoom,
}

impl From<ProtocolError> for E2bError {
    fn from(error: ProtocolError) -> Self {
        let kind = match &error {
            ProtocolError::Encoding { .. } => ErrorKind::NotOffered,
            ProtocolError::TooLarge { .. } => ErrorKind::TooLarge,
            ProtocolError::NoRoom => ErrorKind::Exhausted,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}
