//! The end of a session, and its reasons.

use std::sync::Arc;

use crate::engine::SandboxState;
use crate::quote::Said;
use crate::run::ExchangeError;
use crate::sandbox::SandboxError;
use crate::sandbox::connection::ConnectionError;

/// Why a session has ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EndReason {
    /// Its client or its owner has closed it.
    #[error("it was closed")]
    Closed,
    /// Its program has ended the kernel or the sandbox, and there was no checkpoint to go back to.
    #[error("its program has ended it: {0}")]
    ByProgram(ProgramEnd),
    /// The engine has lost it, or it was removed from outside.
    #[error("its sandbox was lost: {0}")]
    Lost(#[source] Arc<LossError>),
    /// The server is stopping.
    #[error("the server was stopped, and its sessions have ended with it")]
    ServerStops,
}

impl EndReason {
    /// The end of a session whose sandbox was lost.
    pub(super) fn lost(error: impl Into<LossError>) -> Self {
        Self::Lost(Arc::new(error.into()))
    }
}

/// How a program has ended its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProgramEnd {
    /// Memory ran out.
    #[error("a cell needed more memory than it can have")]
    OutOfMemory,
    /// A cell did not end after its timeout.
    #[error("a cell ran longer than its timeout and had to be killed")]
    Timeout,
    /// A cell printed too much.
    #[error("a cell printed more than it may and had to be killed")]
    OutputLimit,
    /// The caller of a cell went away, and the cell did not end.
    #[error("a cell was cancelled and had to be killed")]
    Cancelled,
    /// A cell has ended the kernel.
    #[error("a cell ended its interpreter")]
    InterpreterEnded,
    /// Processes of a command are left.
    #[error("what a command had started could not be ended")]
    ProcessesLeft,
    /// Rewinding has failed.
    #[error("its checkpoints were gone")]
    NoCheckpoints,
    /// The runner was killed, too.
    #[error("everything in its sandbox was killed, by the program or because memory ran out")]
    AllKilled,
}

/// Why the sandbox of a session was lost.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// The runner did not answer a call.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The stream failed between two calls.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The engine failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The sandbox was ended or frozen from outside while a cell ran.
    #[error("the sandbox is {0}")]
    State(SandboxState),
    /// The stream ended between two calls.
    #[error("the sandbox has ended between two calls")]
    BetweenCalls,
    /// The engine can't freeze it.
    #[error("its processes could not be frozen")]
    NotFrozen,
    /// The runner did not find its packages.
    #[error("it did not get its packages: {0}")]
    NotBound(Said),
    /// No kernel could be started, after the session was opened.
    #[error("its interpreter can't be started: {0}")]
    NoKernel(Said),
    /// The task of the session has panicked.
    #[error("a mistake in the server has ended it")]
    Panic,
}
