//! Receipts: how a request was served, or why it was not.

use std::time::Duration;

use super::admission::AdmissionError;
use super::session::SessionError;
use super::sizing::LeadTime;
use super::{CheckoutError, Start};
use crate::engine::EngineError;
use crate::engine::limits::LimitKind;
use crate::run::{RunError, RunTimes};
use crate::sandbox::SandboxError;

/// The state of a pool when a call took a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundPool {
    /// Time of the call, since the pools were started.
    pub at: Duration,
    /// Number of sandboxes of the pool that were being made.
    pub depth: usize,
    /// Typical time for replacing one, if some were made.
    pub lead: Option<LeadTime>,
    /// Memory of each sandbox that waited, in bytes, if that was measured.
    pub sandbox_bytes: Option<u64>,
}

/// How a request was served: its start, its times, its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// How the request got its sandbox.
    pub start: Start,
    /// The state of its pool.
    pub found: FoundPool,
    /// Waiting to be admitted.
    pub queue: Duration,
    /// From admission to a sandbox that can take the job.
    pub checkout: Duration,
    /// The run itself, in parts.
    pub run: RunTimes,
    /// Digest of the image.
    pub image: String,
    /// Limits that the engine can't enforce here.
    pub unenforced: Vec<LimitKind>,
}

/// How a session was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReceipt {
    /// How it got its sandbox.
    pub start: Start,
    /// The state of its pool.
    pub found: FoundPool,
    /// Waiting to be admitted.
    pub queue: Duration,
    /// From admission to a sandbox.
    pub checkout: Duration,
    /// From then until cells can be run.
    pub open: Duration,
}

/// Why a request has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// There is no such pool.
    #[error("there is no pool {0:?}")]
    NoSuchPool(String),
    /// The server is busy or stopping.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// There was no sandbox.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// The sandbox could not do its work.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The session did not open in its sandbox.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The server stopped while the program was in its sandbox, where it may have run.
    #[error("the server has ended the program, because it is shutting down")]
    Aborted,
}

impl ExecuteError {
    /// Whether nothing of the request has begun, and another sandbox could serve it.
    pub(super) fn has_not_begun(&self) -> bool {
        match self {
            // It would most likely take as long in the next one.
            Self::Run(RunError::NotLimited(SandboxError::Engine(EngineError::Deadline {
                ..
            }))) => false,
            Self::Run(error) => matches!(
                error,
                RunError::NotStarted(_)
                    | RunError::NotForked(_)
                    | RunError::NotBound(_)
                    | RunError::NotLimited(_)
            ),
            Self::Session(error) => matches!(error, SessionError::Ended(_)),
            Self::NoSuchPool(_) | Self::Admission(_) | Self::Checkout(_) | Self::Aborted => false,
        }
    }
}
