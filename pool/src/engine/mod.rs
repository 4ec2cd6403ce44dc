//! What a sandbox needs of the software that makes it, and no more.
//!
//! An engine keeps no books: who owns a sandbox and when it goes is decided above. Every method
//! may be called again after it failed, and none retries by itself, but for a pause that Docker's freezer
//! gave up.

#[cfg(not(fuzzing))]
pub mod docker;
#[cfg(not(fuzzing))]
pub mod embedded;
pub mod images;
pub mod instance;
pub mod limits;
pub mod preload;
mod runner_log;
#[cfg(not(fuzzing))]
mod seccomp;
pub mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::io::AsyncWrite;

use crate::engine::limits::{ByteSize, FixedLimits, Resources};
use crate::engine::preload::Preload;

/// Name of a sandbox, chosen before it is made: what can be named can be removed, whatever became
/// of the call that made it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxName(Arc<str>);

impl SandboxName {
    /// Wraps a name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name as the engine knows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An image as the engine knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// What the operator calls it.
    pub name: String,
    /// Digest of its content, `sha256:…`. Sandboxes are made from this, so that a name that comes
    /// to mean another image changes nothing half-way.
    pub digest: String,
    /// Size on disk, in bytes.
    pub size: u64,
    /// Absolute paths that the image declares as volumes.
    pub volumes: Vec<String>,
}

/// Everything that is fixed when a sandbox is made.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The image.
    pub image: Image,
    /// Limits that a request may change.
    pub resources: Resources,
    /// Limits that it may not.
    pub limits: FixedLimits,
    /// Absolute path where the program's files go and where it starts.
    pub workdir: String,
    /// User and group, both numeric.
    pub user: (u32, u32),
    /// Network mode in the engine's words; `none` leaves only loopback.
    pub network: String,
    /// Capabilities to take away, or `ALL`.
    pub cap_drop: Vec<String>,
    /// Whether the root file system can't be written.
    pub readonly_root: bool,
    /// OCI runtime to use instead of the engine's default.
    pub runtime: Option<String>,
    /// The interpreter that waits in it, if one does.
    pub preload: Option<Preload>,
}

impl SandboxSpec {
    /// What a sandbox may use in which a program may use `resources`: modules that wait in it have memory
    /// of their own, so that a program has no less of it for that. An interpreter without modules takes
    /// no more than the program's own would.
    pub fn with_preload(&self, resources: Resources) -> Resources {
        let modules = self.preload.as_ref().filter(|preload| !preload.modules.is_empty());
        let more = modules.map_or(0, |preload| preload.memory.as_bytes());
        let memory = ByteSize::bytes(resources.memory.as_bytes().saturating_add(more));
        Resources { memory, ..resources }
    }
}

/// Labels by which an instance recognises what is its own.
pub type Labels = BTreeMap<String, String>;

/// Tells by their labels whose things are.
pub type LabelFilter<'a> = &'a (dyn Fn(&Labels) -> bool + Send + Sync);

/// The byte stream to a parked runner.
pub struct Channel {
    /// Bytes to the runner's standard input.
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    /// Bytes from its standard output. It ends when the runner or its sandbox is gone.
    pub output: BoxStream<'static, Result<Bytes, EngineError>>,
}

/// What an engine says of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its first process runs.
    Running,
    /// It is frozen.
    Paused,
    /// It exists, but its processes have ended.
    Stopped,
    /// The same, and the engine knows that nobody outside has ended them.
    Ended,
    /// The engine does not know it.
    Gone,
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
            Self::Gone => "gone",
        })
    }
}

/// A sandbox that carries our labels, whoever made it.
#[derive(Debug, Clone)]
pub struct ListedSandbox {
    /// Its name.
    pub name: SandboxName,
    /// Its labels.
    pub labels: Labels,
}

/// Something an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What is the matter.
    pub what: String,
    /// What to do about it.
    pub mend: String,
}

impl Warning {
    /// Puts the two together.
    pub fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what: what.into(), mend: mend.into() }
    }
}

/// Told of what happens while an image is fetched: one line at a time, for people.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The software that makes sandboxes.
///
/// Dropping a method's future gives up waiting; what the engine was asked to do may still happen.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// A line about the engine: its kind, version and address.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unreachable`] if nothing answers.
    async fn check(&self) -> Result<String, EngineError>;

    /// What an operator should know about the engine: limits that it does not hold, known mistakes
    /// of its version.
    async fn warnings(&self) -> Result<Vec<Warning>, EngineError>;

    /// Whether the engine can make such sandboxes at all. Asked once, when the pools are started.
    ///
    /// # Errors
    ///
    /// What the engine can't do, and how to configure it otherwise.
    fn supports(&self, spec: &SandboxSpec) -> Result<(), Unsupported>;

    /// Makes ready what all sandboxes of this instance share, with the help of an image where the
    /// engine needs one. Called before the first `create`,
    /// and again when a `create` failed: what the engine lost meanwhile is made anew.
    async fn prepare(&self, image: &Image) -> Result<(), EngineError>;

    /// Looks an image up locally.
    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError>;

    /// Fetches an image from its registry.
    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError>;

    /// Makes and starts a sandbox whose first process waits for ever.
    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError>;

    /// Starts a runner in the sandbox; it parks by itself.
    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError>;

    /// Freezes the sandbox. Pausing a paused one is fine.
    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// Thaws the sandbox. Resuming a running one is fine.
    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// Changes what the sandbox may use.
    async fn update(&self, name: &SandboxName, resources: Resources) -> Result<(), EngineError>;

    /// What the engine knows of the sandbox.
    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError>;

    /// Kills and removes the sandbox. Removing one that is gone is fine.
    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// All sandboxes with our labels, of this and other instances.
    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError>;

    /// Removes what instances made besides sandboxes (volumes) whose labels `dead` accepts, and
    /// returns how many there were.
    async fn sweep_shared(&self, dead: LabelFilter<'_>) -> Result<usize, EngineError>;
}

/// An engine can't make the sandboxes that are configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Why an engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No engine answers at the address.
    #[error("no container engine answers at {address}: {message}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What the system said.
        message: String,
    },
    /// This machine does not let this user make sandboxes.
    #[error("sandboxes can't be made here: {0}")]
    Unusable(String),
    /// The engine did not answer in time.
    #[error("the engine did not {call} within {deadline:?}")]
    Deadline {
        /// What was asked.
        call: Call,
        /// How long it had.
        deadline: Duration,
    },
    /// The image is not there.
    #[error("image {0} is not on this engine")]
    NoSuchImage(String),
    /// The engine's disk is full.
    #[error("the engine has no disk space left: {0}")]
    DiskFull(String),
    /// The engine refused.
    #[error("the engine could not {call}: {message}")]
    Refused {
        /// What was asked.
        call: Call,
        /// The engine's own words.
        message: String,
    },
}

/// A call to the engine, for errors and deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`Engine::check`]
    Check,
    /// [`Engine::prepare`]
    Prepare,
    /// [`Engine::find_image`]
    FindImage,
    /// [`Engine::pull_image`], and building one.
    FetchImage,
    /// [`Engine::create`]
    Create,
    /// [`Engine::arm`]
    Arm,
    /// Starting an interpreter in a sandbox, over the channel of [`Engine::arm`]
    Preload,
    /// [`Engine::pause`]
    Pause,
    /// [`Engine::resume`]
    Resume,
    /// [`Engine::update`]
    Update,
    /// [`Engine::state`]
    State,
    /// [`Engine::remove`]
    Remove,
    /// [`Engine::list`]
    List,
    /// [`Engine::sweep_shared`]
    Sweep,
    /// Removing an image
    RemoveImage,
}

impl Call {
    /// How long the call may take. Each is at least ten times what the slowest was seen to take on
    /// a busy two-core machine: it is there to find an engine that hangs, not one that is slow.
    pub const fn deadline(self) -> Duration {
        Duration::from_secs(match self {
            Self::Check | Self::FindImage | Self::State => 10,
            Self::RemoveImage => 5 * 60,
            Self::Pause | Self::Resume | Self::Update => 10,
            Self::Arm | Self::Preload => 20,
            Self::Create | Self::Prepare | Self::Remove | Self::List | Self::Sweep => 30,
            Self::FetchImage => 60 * 60,
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "tell its version",
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
            Self::State => "tell a sandbox's state",
            Self::Remove => "remove a sandbox",
            Self::List => "list the sandboxes",
            Self::Sweep => "remove leftover volumes",
        })
    }
}

/// Waits for an engine's answer as long as [`Call::deadline`] allows.
///
/// # Errors
///
/// The call's own, or [`EngineError::Deadline`].
pub async fn bounded<T>(
    call: Call,
    answer: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let deadline = call.deadline();
    match tokio::time::timeout(deadline, answer).await {
        Ok(result) => result,
        Err(_) => Err(EngineError::Deadline { call, deadline }),
    }
}
