//! The calls to an engine by name, and the deadline of each.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::EngineError;
use crate::counts;

/// Names a call to the engine, for errors and deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`Engine::check`](super::Engine::check)
    Check,
    /// [`Engine::prepare`](super::Engine::prepare)
    Prepare,
    /// [`Engine::find_image`](super::Engine::find_image)
    FindImage,
    /// [`Engine::pull_image`](super::Engine::pull_image), and building one.
    FetchImage,
    /// [`Engine::create`](super::Engine::create)
    Create,
    /// [`Engine::arm`](super::Engine::arm)
    Arm,
    /// Starting an interpreter in a sandbox, over the channel of [`Engine::arm`](super::Engine::arm)
    Preload,
    /// [`Engine::pause`](super::Engine::pause)
    Pause,
    /// [`Engine::resume`](super::Engine::resume)
    Resume,
    /// [`Engine::update`](super::Engine::update)
    Update,
    /// [`Engine::used_memory`](super::Engine::used_memory)
    UsedMemory,
    /// [`Engine::state`](super::Engine::state)
    State,
    /// [`Engine::remove`](super::Engine::remove)
    Remove,
    /// [`Engine::list`](super::Engine::list)
    List,
    /// [`Engine::sweep_shared`](super::Engine::sweep_shared)
    Sweep,
    /// Removing an image
    RemoveImage,
    /// [`Engine::provide`](super::Engine::provide)
    Provide,
    /// [`Engine::withdraw`](super::Engine::withdraw)
    Withdraw,
    /// [`Engine::bind`](super::Engine::bind)
    Bind,
}

impl Call {
    /// How long the call may take: at least ten times the slowest measurement on a busy two-core machine.
    /// Deadlines detect an engine that hangs, not one that is slow.
    pub const fn deadline(self) -> Duration {
        Duration::from_secs(match self {
            Self::Check | Self::FindImage | Self::State => 10,
            Self::RemoveImage | Self::Withdraw => 5 * 60,
            Self::Pause | Self::Resume | Self::Update | Self::UsedMemory | Self::Bind => 10,
            Self::Arm | Self::Preload => 20,
            Self::Create | Self::Prepare | Self::Remove | Self::List | Self::Sweep => 30,
            Self::FetchImage | Self::Provide => 60 * 60,
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "report its version",
            Self::Prepare => "prepare the runner",
            Self::FindImage => "look up an image",
            Self::FetchImage => "fetch an image",
            Self::RemoveImage => "remove an image",
            Self::Create => "create a sandbox",
            Self::Arm => "start the runner in a sandbox",
            Self::Preload => "start an interpreter in a sandbox",
            Self::Pause => "pause a sandbox",
            Self::Resume => "resume a sandbox",
            Self::Update => "change the limits of a sandbox",
            Self::UsedMemory => "report the memory of a sandbox",
            Self::State => "report the state of a sandbox",
            Self::Remove => "remove a sandbox",
            Self::List => "list the sandboxes",
            Self::Sweep => "remove leftover volumes",
            Self::Provide => "take a set of packages",
            Self::Withdraw => "remove a set of packages",
            Self::Bind => "give a sandbox its packages",
        })
    }
}

/// Waits for an engine's answer, at most for [`Call::deadline`].
///
/// # Errors
///
/// The call's own, or [`EngineError::Deadline`].
pub async fn bounded<T>(
    call: Call,
    answer: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let deadline = call.deadline();
    let answer = tokio::time::timeout(deadline, answer).await;
    let result = answer.unwrap_or(Err(EngineError::Deadline { call, deadline }));
    let failure = result.as_ref().err().map(EngineError::number);
    counts::engine_call(call as usize, || format!("{call:?}"), failure);
    result
}
