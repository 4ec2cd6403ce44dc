//! The errors of engines.

use std::error::Error;
use std::time::Duration;

use super::Call;
use super::limits::LimitKind;

/// Why an engine can't make the configured sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// It has no such network mode.
    #[error(
        "the embedded engine supports no network mode but \"none\", and {0:?} is configured: set defaultNetworkMode to \
         \"none\", or engine.kind to \"docker\""
    )]
    Network(String),
    /// It uses no OCI runtime.
    #[error(
        "the embedded engine can't use the OCI runtime {0:?}: remove engine.runtime, or set engine.kind to \"docker\""
    )]
    Runtime(String),
    /// Programs would run without limits, and the operator did not allow that.
    #[error(
        "programs would run without a limit of {}: {why}; to run them all the same, set engine.allowUnlimited to true",
        LimitKind::list(.unenforced)
    )]
    WithoutLimits {
        /// The limits.
        unenforced: Vec<LimitKind>,
        /// The reason, and how to change that.
        why: String,
    },
}

/// The error of a call to an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No engine answers at the address.
    #[error("no container engine answers at {address}: {}", innermost(.cause))]
    Unreachable {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// This machine does not let this user make sandboxes.
    #[error("sandboxes can't be made on this machine: {0}")]
    Unusable(#[source] Cause),
    /// The engine did not answer in time.
    #[error("the engine did not {call} within {deadline:?}")]
    Deadline {
        /// The call.
        call: Call,
        /// The deadline.
        deadline: Duration,
    },
    /// The image is not there.
    #[error("image {0} is not on this engine")]
    NoSuchImage(String),
    /// The engine's disk is full.
    #[error("the engine has no disk space left: {0}")]
    DiskFull(#[source] Cause),
    /// The engine refused.
    #[error("the engine could not {call}: {cause}")]
    Refused {
        /// The call.
        call: Call,
        /// The cause.
        #[source]
        cause: Cause,
    },
}

/// Why a call to an engine failed: an error, or the engine's own words.
pub type Cause = Box<dyn Error + Send + Sync>;

/// The innermost cause: the system's message.
fn innermost(cause: &Cause) -> &dyn Error {
    let mut innermost: &dyn Error = &**cause;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

/// The error of a call that the engine refused.
pub fn refused(call: Call, cause: impl Into<Cause>) -> EngineError {
    EngineError::Refused { call, cause: cause.into() }
}

impl EngineError {
    /// Its place in [`CALL_FAILURES`](crate::counts::CALL_FAILURES).
    pub(super) fn number(&self) -> usize {
        match self {
            Self::Unreachable { .. } => 0,
            Self::Unusable(_) => 1,
            Self::Deadline { .. } => 2,
            Self::NoSuchImage(_) => 3,
            Self::DiskFull(_) => 4,
            Self::Refused { .. } => 5,
        }
    }
}
