//! Translation of the client library's errors.

use bollard::errors::Error;

use crate::engine::{self, Call, EngineError};
use crate::error_chain::error_chain;

/// Translates an error of the library into ours.
pub(super) fn translate(call: Call, address: &str, error: Error) -> EngineError {
    match error {
        Error::RequestTimeoutError => EngineError::Deadline { call, deadline: call.deadline() },
        Error::DockerResponseServerError { message, .. }
        | Error::DockerStreamError { error: message } => refused(call, message),
        error if is_unreachable(&error) => {
            EngineError::Unreachable { address: address.to_owned(), cause: error.into() }
        }
        error => refused(call, error_chain(&error)),
    }
}

/// Longest part of an engine's message that is passed on, in bytes. Some engines repeat the whole request.
const MAX_MESSAGE: usize = 500;

/// The error for an engine's own message.
pub(super) fn refused(call: Call, message: String) -> EngineError {
    let message = shorten(message);
    if message.contains("no space left on device") || message.contains("disk quota exceeded") {
        return EngineError::DiskFull(message.into());
    }
    if message.contains("setting rlimit") {
        let message = format!(
            "{message}; programs have the same limits wherever the engine was started, and this engine may not set \
             them: raise its own hard limits (ulimit -H), such as LimitFSIZE=infinity in its service"
        );
        return engine::refused(call, message);
    }
    engine::refused(call, message)
}

/// Keeps the beginning, which names the failure, and the end, which has its cause.
fn shorten(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let head = message.floor_char_boundary(MAX_MESSAGE / 2);
    let tail = message.ceil_char_boundary(message.len() - MAX_MESSAGE / 2);
    format!("{} … {}", &message[..head], &message[tail..])
}

pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

pub(super) fn is_no_such_image(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("no such image") || message.contains("image not known")
}

fn is_unreachable(error: &Error) -> bool {
    matches!(
        error,
        Error::HyperResponseError { .. }
            | Error::HyperLegacyError { .. }
            | Error::IOError { .. }
            | Error::SocketNotFoundError(_)
    )
}
