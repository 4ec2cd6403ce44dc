//! A sandbox, with its state in its type.
//!
//! `create` → `Sandbox<Armed>` ⇄ `Sandbox<Paused>`, and `run` takes an armed one for good.
//! Every step takes the sandbox by value, so calls to the engine on one sandbox come in series; a
//! step that fails, or whose future is dropped, drops the lease, and the reaper removes it.
//!
//! With one exception: a sandbox can be given its packages and its job while it is being thawed, because an engine takes
//! some time to report that it is thawed.

pub(crate) mod activity;
pub(crate) mod connection;
pub(crate) mod reaper;
pub mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{self, Preloaded, Wanted};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::limits::{ByteSize, LimitKind, Resources};
use crate::engine::preload::{
    AwaitedFork, Fork, Forked, Imported, MOST_COMPLAINTS, PreloadStatus, Want,
};
use crate::engine::{Call, Engine, EngineError, SandboxSpec, SandboxState, bounded};
use crate::packages::PackageSet;
use crate::quote::in_one_line;
use crate::sandbox::connection::{Connection, ConnectionError};
use crate::sandbox::reaper::Lease;

/// Number of checks, and the interval between them, until the state of a sandbox is believed.
const SETTLE_CHECKS: u32 = 5;
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// The runner is parked and the sandbox thawed, or about to be: a job can be sent at once.
pub(crate) struct Armed {
    /// The next thing that should wait in the sandbox and does not yet.
    missing: Option<Missing>,
    /// The engine's answer to the call that thaws it.
    thawing: Option<oneshot::Receiver<Result<(), EngineError>>>,
}

/// Something that should wait in a sandbox and does not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The interpreter, which takes the time of its start.
    Interpreter,
    /// One that has imported the modules too, which may take a second.
    Modules,
}

/// The runner is parked, everything that should wait in the sandbox is there, and it is frozen.
pub(crate) struct Paused;

/// A sandbox that was to be frozen.
pub(crate) enum PausedOrKept {
    /// It is frozen.
    Paused(Sandbox<Paused>),
    /// It could not be frozen, and still runs.
    Kept(Sandbox<Armed>),
}

/// A sandbox that can serve one request, or one session.
pub(crate) struct Sandbox<State> {
    pub(crate) lease: Arc<Lease>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) spec: Arc<SandboxSpec>,
    pub(crate) connection: Connection,
    pub(crate) state: State,
    created: Instant,
    /// Memory that the interpreters hold which wait in it, if one of them has imported modules. It is on top of what
    /// the program may use.
    ahead: ByteSize,
    /// Whether its limits are those of the request, and no longer those that it was made with.
    has_other_limits: bool,
}

/// Why a sandbox could not be made or brought to its next state.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The runner failed.
    #[error("the sandbox did not become ready: {0}")]
    Runner(#[from] ConnectionError),
    /// The sandbox was ended from outside.
    #[error("the sandbox was removed, stopped or paused from outside")]
    Lost,
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

impl SandboxError {
    /// Whether this is why an image could not be built or pulled, if there is none.
    pub(crate) fn may_be_of_image(&self) -> bool {
        match self {
            Self::Engine(
                EngineError::Refused { call, .. } | EngineError::Deadline { call, .. },
            ) => *call == Call::FetchImage,
            Self::Engine(EngineError::NoSuchImage(_) | EngineError::DiskFull(_)) => true,
            _ => false,
        }
    }

    /// Whether the engine may have failed because something that all sandboxes are made from has been removed.
    pub(crate) fn may_be_outdated(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Refused { .. } | EngineError::NoSuchImage(_)))
    }
}

/// A kernel that the engine can fork into a sandbox.
pub(crate) struct KernelFork {
    with_modules: bool,
    /// The version of the interpreter.
    pub(crate) version: String,
}

impl<State> Sandbox<State> {
    /// The time at which the sandbox was made.
    pub(crate) fn created(&self) -> Instant {
        self.created
    }

    /// Whether its stream has ended: its runner, or the sandbox itself, is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.connection.is_closed()
    }

    /// Whether the runner is still there, as far as its stream shows, and everything that the sandbox was made from.
    pub(crate) fn is_alive(&self) -> bool {
        !self.has_ended() && self.engine.is_intact(self.lease.name())
    }

    fn into_state<Next>(self, state: Next) -> Sandbox<Next> {
        let Self { lease, engine, spec, connection, created, ahead, has_other_limits, .. } = self;
        Sandbox { lease, engine, spec, connection, created, ahead, has_other_limits, state }
    }
}

impl Sandbox<Armed> {
    /// Makes a sandbox and starts its runner. `on_close` is called when its stream has ended.
    pub(crate) async fn create(
        engine: Arc<dyn Engine>,
        lease: Lease,
        spec: Arc<SandboxSpec>,
        tasks: &TaskTracker,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<Self, SandboxError> {
        bounded(Call::Create, engine.create(lease.name(), &spec)).await?;
        // The runner's word that it is ready belongs to the call: pausing before it was heard
        // would freeze the engine's own helper inside the sandbox and lock the container forever.
        let connection = bounded(Call::Arm, async {
            let channel = engine.arm(lease.name()).await?;
            Ok(Connection::open(channel, tasks, on_close).await)
        })
        .await??;
        let lease = Arc::new(lease);
        let missing = spec.preload.as_ref().map(|_| Missing::Interpreter);
        let state = Armed { missing, thawing: None };
        let (created, ahead) = (Instant::now(), ByteSize::bytes(0));
        let has_other_limits = false;
        Ok(Self { lease, engine, spec, connection, created, ahead, has_other_limits, state })
    }

    /// The next thing that should wait in the sandbox and does not yet.
    pub(crate) fn missing(&self) -> Option<Missing> {
        self.state.missing
    }

    /// Starts the next missing interpreter. Returns the state of all interpreters so far.
    pub(crate) async fn preload(&mut self) -> Result<PreloadStatus, SandboxError> {
        let spec = Arc::clone(&self.spec);
        let (Some(preload), Some(missing)) = (&spec.preload, self.state.missing) else {
            return Ok(PreloadStatus::default());
        };
        let with_modules = missing == Missing::Modules;
        let fork = self.engine.fork(self.lease.name(), &spec, Fork::Spare { with_modules });
        let (forked, why) = match bounded(Call::Preload, fork).await? {
            Forked::Yes { .. } => (true, None),
            Forked::No(why) => (false, why),
        };
        let modules = if with_modules { &preload.modules[..] } else { &[] };
        let message = preload.message(&spec.workdir, modules, forked);
        if with_modules && !forked {
            self.allow(spec.resources, preload.memory).await?;
        }
        let Preloaded { memory, mut complaints, .. } = self.prepare(&message).await?;
        if let (Some(why), true) = (why, complaints.is_empty()) {
            let program = preload.argv.first().map_or("", String::as_str);
            complaints
                .push(format!("{program} can't be forked, so each sandbox starts its own: {why}"));
        }
        if with_modules && !forked {
            // The runner's figure is bounded by the memory that it was given.
            self.ahead = ByteSize::bytes(memory.min(preload.memory.as_bytes()));
            self.allow(spec.resources, self.ahead).await?;
        }
        self.state.missing = match missing {
            Missing::Interpreter if !preload.modules.is_empty() => Some(Missing::Modules),
            Missing::Interpreter | Missing::Modules => None,
        };
        Ok(PreloadStatus { memory, complaints })
    }

    /// Has the runner prepare an interpreter, and waits until that is ready. The engine hears of a fork that did not get ready.
    async fn prepare(&mut self, message: &wire::Preload) -> Result<Preloaded, SandboxError> {
        let preload = bounded(Call::Preload, async { Ok(self.connection.preload(message).await) });
        let mut preloaded = preload.await??;
        // An interpreter of the image may have chosen the words.
        preloaded.complaints.truncate(MOST_COMPLAINTS);
        for words in preloaded.complaints.iter_mut().chain(&mut preloaded.not_ready) {
            *words = in_one_line(words);
        }
        // With a request's limits it may be the limits that kept it from that.
        if let (Some(why), false) = (&preloaded.not_ready, self.has_other_limits) {
            self.engine.not_ready(self.lease.name(), &self.spec, &message.modules, why);
        }
        Ok(preloaded)
    }

    /// A fork that the engine can put into the sandbox and that is better for a program than the waiting interpreter, if there is one.
    pub(crate) fn better_fork(&self, want: &Want) -> Option<AwaitedFork> {
        if self.spec.preload.is_none() || want.interpreter == Wanted::New {
            return None;
        }
        let with_modules = want.interpreter == Wanted::Loaded;
        let is_there = match self.state.missing {
            None => true,
            Some(Missing::Modules) => !with_modules,
            Some(Missing::Interpreter) => false,
        };
        if is_there && want.imports.modules.is_empty() {
            // Nothing is better than that.
            return None;
        }
        let fork = AwaitedFork { with_modules, is_there, imports: want.imports.clone() };
        self.engine.asked_for(self.lease.name(), &self.spec, &fork);
        self.engine.can_fork(self.lease.name(), &self.spec, &fork).then_some(fork)
    }

    /// Gives a set of packages to the sandbox, which may still be frozen. Returns their description for the runner. The set is
    /// kept until the sandbox is removed.
    pub(crate) async fn bind(
        &mut self,
        set: &Arc<PackageSet>,
    ) -> Result<wire::Packages, EngineError> {
        // It is the first one.
        self.lease.keep(Arc::clone(set));
        let bind = self.engine.bind(self.lease.name(), set);
        let folder = bounded(Call::Bind, bind).await?;
        Ok(wire::Packages { interpreter: set.interpreter, folder })
    }

    /// Forks an interpreter for a program into the thawed sandbox. Returns whether one with modules came.
    ///
    /// After an error the state of the sandbox is unknown: it must not get a job. The same holds if the future is dropped.
    pub(crate) async fn fork(&mut self, fork: AwaitedFork) -> Result<bool, SandboxError> {
        let spec = Arc::clone(&self.spec);
        let Some(preload) = &spec.preload else { return Ok(false) };
        let fork = self.engine.fork(self.lease.name(), &spec, Fork::Awaited(fork));
        let Forked::Yes { modules } = bounded(Call::Preload, fork).await? else {
            return Ok(false);
        };
        self.prepare(&preload.message(&spec.workdir, &modules, true)).await?;
        Ok(!modules.is_empty())
    }

    /// The kernel that the engine can fork into the sandbox for a session, if it can.
    pub(crate) fn kernel_fork(&self, want: &Want) -> Option<KernelFork> {
        let is_wanted = want.for_session && self.spec.preload.is_some();
        if !is_wanted || want.interpreter == Wanted::New {
            return None;
        }
        let with_modules = want.interpreter == Wanted::Loaded;
        let (name, spec) = (self.lease.name(), &self.spec);
        let version = self.engine.can_fork_kernel(name, spec, with_modules)?;
        Some(KernelFork { with_modules, version })
    }

    /// Forks a kernel into the thawed sandbox, while its runner opens the session. Returns whether it comes. Unless it does, the runner
    /// must kill what may have come.
    pub(crate) fn fork_kernel(
        &self,
        fork: &KernelFork,
    ) -> impl Future<Output = bool> + Send + use<> {
        let (engine, lease) = (Arc::clone(&self.engine), Arc::clone(&self.lease));
        let (spec, with_modules) = (Arc::clone(&self.spec), fork.with_modules);
        async move {
            let fork = engine.fork(lease.name(), &spec, Fork::Kernel { with_modules });
            match bounded(Call::Preload, fork).await {
                Ok(forked) => matches!(forked, Forked::Yes { .. }),
                // The engine has logged why.
                Err(_) => false,
            }
        }
    }

    /// Reports to the engine that the kernel that was forked into the sandbox did not get ready.
    pub(crate) fn kernel_not_ready(&self, why: &str) {
        let with_modules =
            self.spec.preload.as_ref().is_some_and(|preload| !preload.modules.is_empty());
        // With a request's limits it may be the limits that kept it from that.
        if !self.has_other_limits {
            let why = in_one_line(why);
            self.engine.kernel_not_ready(self.lease.name(), &self.spec, with_modules, &why);
        }
    }

    /// Reports to the engine the imports of the program, and its CPU time.
    pub(crate) fn imported(&self, client: &dyn fmt::Display, want: &Want, cpu: Duration) {
        if !want.imports.modules.is_empty() {
            let client = &client.to_string();
            let with_modules = want.interpreter == Wanted::Loaded;
            let imported = Imported { client, with_modules, imports: &want.imports, cpu };
            self.engine.imported(self.lease.name(), &self.spec, imported);
        }
    }

    /// Freezes the sandbox.
    pub(crate) async fn pause(self) -> Result<Sandbox<Paused>, SandboxError> {
        bounded(Call::Pause, self.engine.pause(self.lease.name())).await?;
        Ok(self.into_state(Paused))
    }

    /// Freezes the sandbox, or keeps it if the engine failed and it still runs.
    pub(crate) async fn pause_or_keep(mut self) -> Result<PausedOrKept, SandboxError> {
        let Err(error) = bounded(Call::Pause, self.engine.pause(self.lease.name())).await else {
            return Ok(PausedOrKept::Paused(self.into_state(Paused)));
        };
        match self.state().await? {
            SandboxState::Running => {
                tracing::warn!(%error, "a sandbox could not be frozen");
                Ok(PausedOrKept::Kept(self))
            }
            SandboxState::Paused => Ok(PausedOrKept::Paused(self.into_state(Paused))),
            SandboxState::Stopped | SandboxState::Ended | SandboxState::Gone => Err(error.into()),
        }
    }

    /// Changes the limits of the program in the thawed sandbox.
    pub(crate) async fn limit(&mut self, resources: Resources) -> Result<(), SandboxError> {
        self.has_other_limits = true;
        self.allow(resources, self.ahead).await
    }

    /// Sets the limits of the program, and memory on top for the interpreters that wait in the sandbox.
    async fn allow(&mut self, resources: Resources, more: ByteSize) -> Result<(), SandboxError> {
        if self.engine.unenforced().contains(&LimitKind::Memory) {
            return Ok(());
        }
        let memory = resources.memory.as_bytes().saturating_add(more.as_bytes());
        let resources = Resources { memory: ByteSize::bytes(memory), ..resources };
        let processes = self.spec.processes();
        let update = self.engine.update(self.lease.name(), resources, processes);
        Ok(bounded(Call::Update, update).await?)
    }

    /// A handle to take back the memory and the process of the interpreters that a program did not need, once they are gone;
    /// `None` if there is only one.
    pub(crate) fn take_back(&self, resources: Resources) -> Option<TakeBack> {
        let (engine, lease) = (Arc::clone(&self.engine), Arc::clone(&self.lease));
        let (ahead, processes) = (self.ahead, self.spec.limits.pids);
        let has_spare = processes < self.spec.processes();
        has_spare.then_some(TakeBack { engine, lease, resources, ahead, processes })
    }

    /// The state of the sandbox, as the engine knows it.
    pub(crate) async fn state(&mut self) -> Result<SandboxState, SandboxError> {
        self.state.thawed().await?;
        Ok(bounded(Call::State, self.engine.state(self.lease.name())).await?)
    }

    /// The state of a sandbox whose stream has just ended. An engine closes the streams of a
    /// container that is killed before it calls it stopped.
    pub(crate) async fn settled_state(&mut self) -> Result<SandboxState, SandboxError> {
        for _ in 0..SETTLE_CHECKS {
            let state = self.state().await?;
            if state != SandboxState::Running {
                return Ok(state);
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        self.state().await
    }
}

/// Number of tries to lower the limits of a sandbox, and the pause between them.
const LOWERING_TRIES: u32 = 3;
const LOWERING_PAUSE: Duration = Duration::from_secs(1);

/// Lowers the limits of a sandbox to those of its program.
pub(crate) struct TakeBack {
    engine: Arc<dyn Engine>,
    lease: Arc<Lease>,
    resources: Resources,
    ahead: ByteSize,
    processes: u32,
}

impl TakeBack {
    /// Does it in a task of `tasks`, which holds the lease: the program goes on meanwhile, and the sandbox is not
    /// removed. The program keeps `kept` bytes on top, the memory of the modules that it was given; never more than
    /// all that waited had.
    pub(crate) fn begin(self, kept: u64, tasks: &TaskTracker) -> Lowering {
        let Self { engine, lease, resources, ahead, processes } = self;
        let memory = resources.memory.as_bytes().saturating_add(kept.min(ahead.as_bytes()));
        let resources = Resources { memory: ByteSize::bytes(memory), ..resources };
        let still_there = Arc::downgrade(&lease);
        let mut lease = Some(lease);
        let no_more_tries = CancellationToken::new();
        let end = no_more_tries.clone();
        let task = tasks.spawn(async move {
            for tries_left in (0..LOWERING_TRIES).rev() {
                // Between two tries only the request holds the sandbox, so that it is removed as soon as that has ended.
                let Some(held) = lease.take().or_else(|| still_there.upgrade()) else { return };
                let update = engine.update(held.name(), resources, processes);
                let Err(error) = bounded(Call::Update, update).await else { return };
                if tries_left == 0 {
                    // The program has already used the memory, which stays its own then, or the engine has a fault.
                    tracing::warn!(sandbox = %held.name(), %error, "a program keeps more memory than it may use");
                    return;
                }
                tracing::debug!(sandbox = %held.name(), %error, "limits were not lowered, trying again");
                drop(held);
                if end.run_until_cancelled(tokio::time::sleep(LOWERING_PAUSE)).await.is_none() {
                    return;
                }
            }
        });
        Lowering { task, no_more_tries }
    }
}

/// Limits that are being lowered.
pub(crate) struct Lowering {
    task: JoinHandle<()>,
    no_more_tries: CancellationToken,
}

impl Lowering {
    /// Waits until no call of it is under way, and none follows.
    pub(crate) async fn settle(self) {
        self.no_more_tries.cancel();
        // It ends without an answer only together with the runtime.
        let _ = self.task.await;
    }
}

impl Armed {
    /// Waits until the engine has answered the call that thaws the sandbox, if there is one.
    /// Dropping the future leaves it as it was.
    pub(crate) async fn thawed(&mut self) -> Result<(), EngineError> {
        let Some(thawing) = &mut self.thawing else { return Ok(()) };
        let answer = thawing.await;
        self.thawing = None;
        // The task ends without an answer only together with the runtime.
        answer.unwrap_or(Ok(()))
    }
}

impl Sandbox<Paused> {
    /// Memory that counts towards its limit now, in bytes, if the engine knows.
    pub(crate) async fn used_memory(&mut self) -> Result<Option<u64>, EngineError> {
        bounded(Call::UsedMemory, self.engine.used_memory(self.lease.name())).await
    }

    /// Thaws the sandbox.
    pub(crate) async fn resume(self) -> Result<Sandbox<Armed>, SandboxError> {
        bounded(Call::Resume, self.engine.resume(self.lease.name())).await?;
        if !self.is_alive() {
            return Err(SandboxError::Lost);
        }
        Ok(self.into_state(Armed { missing: None, thawing: None }))
    }

    /// Begins to thaw the sandbox. The call is a task of `tasks`, which holds the lease: whatever becomes
    /// of the sandbox, no other call overtakes it.
    pub(crate) fn begin_to_resume(self, tasks: &TaskTracker) -> Sandbox<Armed> {
        let (sender, thawing) = oneshot::channel();
        let engine = Arc::clone(&self.engine);
        let lease = Arc::clone(&self.lease);
        tasks.spawn(async move {
            let answer = bounded(Call::Resume, engine.resume(lease.name())).await;
            drop(lease);
            // The receiver may be gone, which is fine.
            let _ = sender.send(answer);
        });
        self.into_state(Armed { missing: None, thawing: Some(thawing) })
    }
}
