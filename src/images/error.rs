//! The errors of building images, as those of an engine.

use isolator_pool::engine::{Call, EngineError};

pub(super) fn failed(error: std::io::Error) -> EngineError {
    refused(error.to_string())
}

pub(super) fn refused(message: String) -> EngineError {
    EngineError::Refused { call: Call::FetchImage, message }
}
