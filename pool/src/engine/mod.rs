//! Engines: the software that makes sandboxes.
//!
//! An engine does not track the owner of a sandbox or when it has to be removed; its callers do. Every method
//! may be called again after a failure. None retries by itself, except for a pause that Docker's freezer
//! has given up.

mod call;
#[cfg(not(fuzzing))]
pub mod docker;
#[cfg(not(fuzzing))]
mod docker_config;
#[cfg(not(fuzzing))]
pub mod embedded;
mod error;
mod fetches;
#[cfg(not(fuzzing))]
mod hidden_paths;
pub mod images;
pub mod instance;
pub mod limits;
pub mod preload;
#[cfg(not(fuzzing))]
pub mod process_limits;
#[cfg(not(fuzzing))]
mod runner_log;
#[cfg(not(fuzzing))]
mod seccomp;
pub mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use rustix::process::Pid;
use tokio::io::AsyncWrite;

pub use self::call::{Call, bounded};
pub use self::error::{Cause, EngineError, Unsupported, refused};
use crate::engine::limits::{ByteSize, FixedLimits, LimitKind, Resources};
use crate::engine::preload::{AwaitedFork, Fork, Forked, Imported, Interpreter, Preload};
use crate::packages::PackageSet;

/// Proportional memory (PSS) in bytes: what several processes share counts for each of them in equal parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingMemory {
    /// Number of measured sandboxes.
    pub count: u64,
    /// Of all processes in the sandboxes.
    pub sandboxes: u64,
    /// Of the templates of all sandboxes.
    pub templates: u64,
}

impl WaitingMemory {
    /// Of one sandbox, if any was measured.
    pub const fn each(&self) -> Option<u64> {
        match self.sandboxes.checked_div(self.count) {
            Some(0) => None,
            each => each,
        }
    }
}

/// Name of a sandbox. It is chosen before the sandbox is made, so that the sandbox can be removed whatever
/// happens to the call that makes it.
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
    /// Its name in the configuration.
    pub name: String,
    /// Digest of its content, `sha256:…`. Sandboxes are made from this, so that all of a pool have the same
    /// image even if the name gets a new meaning.
    pub digest: String,
    /// Size on disk, in bytes.
    pub size: u64,
    /// Absolute paths that the image declares as volumes.
    pub volumes: Vec<String>,
}

/// Everything that is fixed when a sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// The image.
    pub image: Image,
    /// Limits that a request may change.
    pub resources: Resources,
    /// Limits that a request may not change.
    pub limits: FixedLimits,
    /// Absolute path of the workspace, in which the program starts.
    pub workdir: String,
    /// User and group, both numeric.
    pub user: (u32, u32),
    /// Network mode in the engine's words; `none` leaves only loopback.
    pub network: String,
    /// Capabilities to take away, or `ALL`.
    pub cap_drop: Vec<String>,
    /// The access of programs to the root file system.
    pub root: RootAccess,
    /// OCI runtime to use instead of the engine's default.
    pub runtime: Option<String>,
    /// The interpreter that waits in each sandbox, if any.
    pub preload: Option<Preload>,
    /// The interpreter of the sets of packages that it can be given, if any.
    pub packages: Option<Interpreter>,
    /// Whether such a sandbox is made even where the engine can't enforce every limit.
    pub allow_unlimited: bool,
}

/// The access of the programs of a sandbox to its root file system, apart from the file systems in memory that are mounted there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootAccess {
    /// They can only read it.
    ReadOnly,
    /// They can write where the files of the image permit it.
    ModesOfImage,
    /// They can add files and folders in the usual folders of a system, as far as the engine can offer that, and change none of the
    /// image. The workspace is the home of their user, whose name is [`USER_NAME`].
    Open,
}

/// The name of the user of programs in a sandbox with an [open](RootAccess::Open) root.
pub const USER_NAME: &str = "user";

/// The workspace of sandboxes with an [open](RootAccess::Open) root, which is the home of that user.
pub const USER_HOME: &str = "/home/user";

impl SandboxSpec {
    /// Processes and threads of a sandbox. If two interpreters wait in it, the one that is not needed is still there for
    /// a moment when the program starts, and must take nothing from it.
    pub fn processes(&self) -> u32 {
        let is_spare_left =
            self.preload.as_ref().is_some_and(|preload| !preload.modules.is_empty());
        self.limits.pids + u32::from(is_spare_left)
    }
}

/// Labels by which an instance recognizes what belongs to it.
pub type Labels = BTreeMap<String, String>;

/// A predicate on labels.
pub type LabelFilter<'a> = &'a (dyn Fn(&Labels) -> bool + Send + Sync);

/// The byte stream to a parked runner.
pub struct Channel {
    /// Bytes to the runner's standard input.
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    /// Bytes from its standard output. It ends when the runner or its sandbox is gone.
    pub output: BoxStream<'static, Result<Bytes, EngineError>>,
}

/// The state of a sandbox, as the engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its first process runs.
    Running,
    /// It is frozen.
    Paused,
    /// It exists, but its processes have ended.
    Stopped,
    /// Its processes have ended by themselves, or the kernel killed them because memory ran out.
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

/// A sandbox with our labels, of any instance.
#[derive(Debug, Clone)]
pub struct ListedSandbox {
    /// Its name.
    pub name: SandboxName,
    /// Its labels.
    pub labels: Labels,
}

/// A problem that an operator should know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The problem.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

impl Warning {
    /// A problem with its fix.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }
}

/// Where an engine makes its sandboxes, as seen from this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// On this machine.
    Here,
    /// Behind a socket of this machine, but with a kernel of its own.
    VirtualMachine,
    /// Behind an encrypted connection that proves who both sides are.
    Encrypted,
    /// Behind a connection that anyone can read and open.
    Open,
}

/// A program that an engine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Its name.
    pub name: String,
    /// Its version, as it reports it.
    pub version: String,
}

/// Facts that an engine reports about itself, for checks of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Where it is.
    pub location: Location,
    /// Its default OCI runtime, if it has runtimes.
    pub runtime: Option<String>,
    /// The programs that it uses to make sandboxes.
    pub components: Vec<Component>,
    /// The kernel's protections that it uses for all sandboxes, such as `apparmor` and `userns`.
    pub protections: Vec<String>,
}

/// Called with each line of progress while an image is fetched. The lines are for people.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// A group of processes outside of sandboxes that has limits. Dropping it kills what is in it.
pub trait ToolGroup: Send + Sync {
    /// Moves a process into the group, and with it all that the process starts from then on.
    ///
    /// # Errors
    ///
    /// When the process has ended, or the kernel refuses it.
    fn take_in(&self, pid: Pid) -> io::Result<()>;

    /// The limit that its processes have reached, if any.
    fn reached(&self) -> Option<LimitKind>;
}

/// The software that makes sandboxes.
///
/// Dropping a method's future stops waiting; the engine may still complete the call.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Describes the engine in one line: kind, version, address.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unreachable`] if nothing answers.
    async fn check(&self) -> Result<String, EngineError>;

    /// Problems that an operator should know about: limits that the engine can't enforce, known bugs of its version.
    async fn warnings(&self) -> Result<Vec<Warning>, EngineError>;

    /// Facts about the engine. An engine in this process has nothing to add.
    async fn facts(&self) -> Result<Facts, EngineError> {
        let (components, protections) = (Vec::new(), Vec::new());
        Ok(Facts { location: Location::Here, runtime: None, components, protections })
    }

    /// Whether the engine can make such sandboxes at all. Asked once, when the pools are started.
    ///
    /// # Errors
    /// [`Unsupported`], with how to configure it otherwise.
    fn supports(&self, spec: &SandboxSpec) -> Result<(), Unsupported>;

    /// The limits that the engine can't enforce on this machine, as far as it knows by now: after the first
    /// sandbox, all of them.
    fn unenforced(&self) -> Vec<LimitKind>;

    /// Prepares what all sandboxes of this instance share that are made like this one. Some engines need an image for that. Called before
    /// the first `create` from an image, and again after a failed one, to recreate what the engine may have lost. From then on no
    /// sandbox is made from an image that had the same name before.
    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), EngineError>;

    /// Looks an image up locally.
    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError>;

    /// Fetches an image from its registry.
    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError>;

    /// Advice, in a sentence, for when more requests come than this engine makes sandboxes for.
    fn advice_when_busy(&self) -> Option<&'static str> {
        None
    }

    /// Creates a sandbox, as far as can be done before its runner starts.
    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError>;

    /// Notes that a program asks for an interpreter. An engine may make a template for later programs, in the background.
    fn asked_for(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: &AwaitedFork) {}

    /// Whether an interpreter could be forked into a sandbox now, better than what waits there. Changes nothing.
    fn can_fork(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: &AwaitedFork) -> bool {
        false
    }

    /// The version of the interpreter, if the kernel of a session could be forked into a sandbox now. If not, an engine may make a
    /// template for later sessions, in the background.
    fn can_fork_kernel(
        &self,
        _: &SandboxName,
        _: &Arc<SandboxSpec>,
        _with_modules: bool,
    ) -> Option<String> {
        None
    }

    /// Notes that the kernel of a session that was forked into a sandbox did not get ready there, and why. An engine gives up the
    /// template.
    fn kernel_not_ready(
        &self,
        _: &SandboxName,
        _: &Arc<SandboxSpec>,
        _with_modules: bool,
        _: &str,
    ) {
    }

    /// Notes the imports of a program that has ended. An engine may import ahead what programs import often.
    fn imported(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: Imported<'_>) {}

    /// Forks an interpreter into a sandbox whose runner waits for it. If the future is dropped, the contents of the sandbox are
    /// unknown.
    ///
    /// # Errors
    ///
    /// When the contents of the sandbox are unknown. It can't be used anymore.
    async fn fork(
        &self,
        _: &SandboxName,
        _: &Arc<SandboxSpec>,
        _: Fork,
    ) -> Result<Forked, EngineError> {
        Ok(Forked::No(None))
    }

    /// Notes that an interpreter with these modules, which was forked into a sandbox, did not get ready there, and why. An
    /// engine gives up the template, so that the next sandboxes don't wait in vain.
    fn not_ready(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: &[String], _: &str) {}

    /// Brings a set of packages to where the engine makes its sandboxes, unless it is there. Needs an image that the engine
    /// has. Called before the first [`bind`](Engine::bind) of the set.
    async fn provide(&self, _: &PackageSet, _: &Image) -> Result<(), EngineError> {
        Ok(())
    }

    /// Removes what [`provide`](Engine::provide) has brought, and ends the templates that have the set with this hash. No
    /// sandbox has it anymore. Its folder may be gone.
    async fn withdraw(&self, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    /// Makes a set of packages visible in a sandbox that waits, once. Returns its folder there. Nothing in the sandbox has to run
    /// for that: it may be frozen, or just be thawed by another call.
    async fn bind(&self, name: &SandboxName, set: &Arc<PackageSet>) -> Result<String, EngineError>;

    /// Makes another set visible in a sandbox whose programs run, in the place of the one that it has. That one must stay, because its
    /// files can be in use. Otherwise as [`bind`](Engine::bind).
    async fn bind_running(
        &self,
        name: &SandboxName,
        set: &Arc<PackageSet>,
    ) -> Result<String, EngineError> {
        self.bind(name, set).await
    }

    /// Notes that a set was missing in a sandbox that was given it, so what [`provide`](Engine::provide) has brought may be gone.
    fn missed(&self, _: &PackageSet) {}

    /// Memory of sandboxes, of this instance or another, and of their templates, if the engine can tell. This looks at every
    /// page, so it takes about a millisecond for each.
    async fn memory(&self, _: Vec<SandboxName>) -> Option<WaitingMemory> {
        None
    }

    /// Bytes that count towards the limit of a sandbox's memory now, if the engine can tell.
    async fn used_memory(&self, _: &SandboxName) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }

    /// Number of templates that are ready, if the engine has templates.
    fn templates(&self) -> Option<usize> {
        None
    }

    /// Makes a group with limits for a tool that works for this server on this machine, outside of sandboxes. `None` if the
    /// engine has no such groups. The name is used once.
    async fn tool_group(&self, _: String, _: ByteSize, _: u32) -> Option<Box<dyn ToolGroup>> {
        None
    }

    /// Opens the streams of the sandbox's runner, which parks by itself, and starts the sandbox unless
    /// [`create`](Engine::create) has.
    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError>;

    /// Freezes the sandbox. Pausing a paused one is fine.
    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// Thaws the sandbox. Resuming a running one is fine.
    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// Changes the limits of the sandbox: of its resources, and of processes and threads.
    async fn update(
        &self,
        name: &SandboxName,
        resources: Resources,
        processes: u32,
    ) -> Result<(), EngineError>;

    /// Whether all that a sandbox was made from is still there, as far as a quick check can tell.
    fn is_intact(&self, _: &SandboxName) -> bool {
        true
    }

    /// The state of the sandbox.
    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError>;

    /// Kills and removes the sandbox. Removing one that is gone is fine.
    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError>;

    /// All sandboxes with our labels, of this and other instances.
    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError>;

    /// Removes what instances made besides sandboxes, such as volumes, if `dead` accepts the labels. Returns the number removed.
    async fn sweep_shared(&self, dead: LabelFilter<'_>) -> Result<usize, EngineError>;
}
