//! The errors of building images, as those of an engine.

use isolator_pool::engine::{Call, Cause, EngineError};

pub(super) fn refused(cause: impl Into<Cause>) -> EngineError {
    isolator_pool::engine::refused(Call::FetchImage, cause)
}
