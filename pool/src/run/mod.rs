//! A run: one request's job in one armed sandbox, which is gone afterwards.

pub(crate) mod exchange;
pub mod installs;
pub(crate) mod interpreter;
pub mod outcome;
pub mod output;
mod request;
pub mod workspace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use isolator_runner::wire::{
    self, Bounds, Exit, Failed, FailedCause, Job, Kind, Wanted, WireError,
};

use crate::engine::limits::Resources;
use crate::engine::preload::Want;
use crate::engine::{Call, EngineError, RootAccess, SandboxSpec, SandboxState, bounded, refused};
use crate::packages::PackageSet;
use crate::quote::{Said, said};
use crate::run::exchange::{Place, RunnerReport, Step, exchange, start_message};
use crate::run::installs::Installs;
use crate::run::outcome::{Outcome, Status};
use crate::run::output::Output;
use crate::sandbox::{Armed, KernelFork, Sandbox, SandboxError};

pub use self::exchange::ExchangeError;
pub use self::request::RunRequest;

/// Time that the server waits for the runner's report after the program's deadline: the runner has to
/// kill, to drain and to send, on the sandbox's share of the CPU.
const REPORT_GRACE: Duration = Duration::from_secs(5);

/// Longest time from the first byte sent to the program's start: transfer and unpacking on the sandbox's share of
/// the CPU.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The times of a run's parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// Changing the sandbox's limits, where the request asked for others.
    pub limit: Duration,
    /// Giving the sandbox a set of packages, where the request asked for one.
    pub bind: Duration,
    /// Unpacking the workspace, as the runner reports.
    pub unpack: Duration,
    /// Starting the program, as the runner reports.
    pub spawn: Duration,
    /// Whether an interpreter that was started ahead took the program.
    pub preloaded: bool,
    /// From the first byte sent to the last received.
    pub total: Duration,
}

/// Why there is no outcome. None of these is the program's doing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The sandbox failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The files are larger than the workspace.
    #[error("the files do not fit into the workspace: {0}")]
    WorkspaceFull(Said),
    /// The workspace could not be unpacked.
    #[error("the files could not be unpacked: {0}")]
    Workspace(Said),
    /// The language's command can't be started in its image.
    #[error("the image can't run the language's command: {0}")]
    Command(Said),
    /// The runner did not understand the job.
    #[error("the runner did not understand the job: {0}")]
    Protocol(Said),
    /// The sandbox was paused, and the engine did not thaw it.
    #[error("a paused sandbox could not be thawed: {0}")]
    NotThawed(#[source] EngineError),
    /// The sandbox did not get the limits of the request. The program has not begun.
    #[error("the sandbox did not get its limits, so the program was not started: {0}")]
    NotLimited(#[source] SandboxError),
    /// An interpreter was being forked into the sandbox for the program, and the result is not known. The program
    /// has not begun.
    #[error("no interpreter came into the sandbox, so the program was not started: {0}")]
    NotForked(#[source] SandboxError),
    /// The set of packages can't be brought to where sandboxes are made. It would be the same with another sandbox.
    #[error("the packages can't be brought into a sandbox: {0}")]
    Packages(#[source] EngineError),
    /// The sandbox was not given its packages. The program has not begun.
    #[error("the sandbox did not get its packages, so the program was not started: {0}")]
    NotBound(#[source] EngineError),
    /// The runner ended, or took too long, before it had started the program.
    #[error("the sandbox did not start the program; the sandbox is {0}")]
    NotStarted(SandboxState),
    /// The request is larger than a frame.
    #[error("the arguments and variables are too large: {0}")]
    TooLarge(#[source] WireError),
}

/// Runs the job. Dropping the future abandons the run, and the sandbox with everything in it.
pub(crate) async fn run(
    mut sandbox: Sandbox<Armed>,
    request: &RunRequest,
    want: &Want,
    client: &(dyn fmt::Display + Sync),
    tasks: &TaskTracker,
) -> Result<(Outcome, RunTimes), RunError> {
    let packages = request.packages.as_ref();
    let prepared = prepare(&mut sandbox, request.resources, packages, want).await?;
    let (bind, limit) = (prepared.bind, prepared.limit);
    let message = encode(request, prepared, &sandbox)?;
    let sent = Instant::now();
    let mut output = Output::new(request.output, request.watch.clone(), request.files.as_ref());
    let mut take_back = sandbox.take_back(request.resources);
    let mut lowering = None;
    let take = |kind, payload: &[u8]| {
        if let Some(report) = RunnerReport::<Exit>::read(Kind::Exit, kind, payload)? {
            return Ok(Step::Last(report));
        }
        if kind == Kind::Alone && output.has_started() {
            let wire::Alone { memory } = wire::parse_message(kind, payload)?;
            if let Some(take_back) = take_back.take() {
                lowering = Some(take_back.begin(memory, tasks));
            }
            return Ok(Step::More);
        }
        output.take(kind, payload)?;
        Ok(Step::after(kind, request.timeout + REPORT_GRACE))
    };
    let installs = Installs::new(&sandbox, request.installer.clone(), tasks);
    let place = Place::Program(&installs);
    let reported = exchange(&mut sandbox, message, START_TIMEOUT, place, take).await;
    drop(installs);
    let total = sent.elapsed();
    let times = RunTimes { limit, bind, total, ..RunTimes::default() };
    match reported {
        Ok(RunnerReport::Done(exit)) => {
            // The runner's figure is bounded by what is possible.
            sandbox.imported(client, want, exit.cpu.min(total));
            let times = RunTimes {
                unpack: exit.unpack,
                spawn: exit.spawn,
                preloaded: exit.preloaded,
                ..times
            };
            Ok((output.with_report(exit, &disks(&sandbox.spec)), times))
        }
        Ok(RunnerReport::Failed(failed)) => {
            if let (FailedCause::Packages, Some(set)) = (failed.cause, packages) {
                sandbox.engine.missed(set);
            }
            Err(from_failed(failed))
        }
        Err(error) => {
            // The engine is asked about the sandbox next, and gets one call after the other.
            if let Some(lowering) = lowering {
                lowering.settle().await;
            }
            let status = status_without_report(&mut sandbox, error, output.has_started()).await?;
            Ok((output.without_report(status, total), times))
        }
    }
}

/// The status of a program whose runner did not report.
async fn status_without_report(
    sandbox: &mut Sandbox<Armed>,
    error: ExchangeError,
    has_started: bool,
) -> Result<Status, RunError> {
    let (status, state) = match error {
        ExchangeError::NotThawed(error) => return Err(RunError::NotThawed(error)),
        ExchangeError::Protocol(error) => return Err(SandboxError::Runner(error).into()),
        ExchangeError::Late => (Status::Timeout, sandbox.state().await?),
        ExchangeError::Closed => (Status::Killed, sandbox.settled_state().await?),
    };
    match (state, status) {
        _ if !has_started => Err(RunError::NotStarted(state)),
        // When the runner has ended, so has the sandbox: the program killed it, or the kernel did because memory ran out.
        (SandboxState::Running, _) | (SandboxState::Ended, Status::Killed) => Ok(status),
        // It was frozen or ended from outside; otherwise its runner would have reported.
        _ => Err(SandboxError::Lost.into()),
    }
}

/// A sandbox that has what a program needs.
pub(crate) struct Prepared {
    /// The interpreter that the program should have.
    pub(crate) interpreter: Wanted,
    /// Its set of packages, if it has one.
    pub(crate) packages: Option<wire::Packages>,
    /// The kernel that is to be forked for a session.
    pub(crate) kernel: Option<KernelFork>,
    bind: Duration,
    limit: Duration,
}

/// Gives a sandbox its packages, and then, where the request needs it, other limits and a forked interpreter, which a frozen one
/// can't get.
pub(crate) async fn prepare(
    sandbox: &mut Sandbox<Armed>,
    resources: Resources,
    packages: Option<&Arc<PackageSet>>,
    want: &Want,
) -> Result<Prepared, RunError> {
    let began = Instant::now();
    let packages = match packages {
        Some(set) => Some(give(sandbox, set).await?),
        None => None,
    };
    let bind = packages.as_ref().map_or(Duration::ZERO, |_| began.elapsed());
    let began = Instant::now();
    let has_other_limits = resources != sandbox.spec.resources;
    let kernel = sandbox.kernel_fork(want);
    let fork = if want.for_session { None } else { sandbox.better_fork(want) };
    if has_other_limits || fork.is_some() || kernel.is_some() {
        sandbox.state.thawed().await.map_err(RunError::NotThawed)?;
    }
    if has_other_limits {
        sandbox.limit(resources).await.map_err(RunError::NotLimited)?;
    }
    let has_modules = match fork {
        Some(fork) => sandbox.fork(fork).await.map_err(RunError::NotForked)?,
        None => false,
    };
    let interpreter = if has_modules { Wanted::Loaded } else { want.interpreter };
    Ok(Prepared { interpreter, packages, kernel, bind, limit: began.elapsed() })
}

/// Gives a sandbox a set of packages.
async fn give(
    sandbox: &mut Sandbox<Armed>,
    set: &Arc<PackageSet>,
) -> Result<wire::Packages, RunError> {
    if sandbox.spec.packages != Some(set.interpreter) {
        let cause =
            "its sandboxes have no place for them: its language has no packages of this kind";
        return Err(RunError::Packages(refused(Call::Bind, cause)));
    }
    let provide = sandbox.engine.provide(set, &sandbox.spec.image);
    bounded(Call::Provide, provide).await.map_err(RunError::Packages)?;
    sandbox.bind(set).await.map_err(RunError::NotBound)
}

fn encode(
    request: &RunRequest,
    prepared: Prepared,
    sandbox: &Sandbox<Armed>,
) -> Result<Vec<u8>, RunError> {
    let job = Job {
        argv: request.argv.clone(),
        env: request.env.clone(),
        workdir: sandbox.spec.workdir.clone(),
        bounds: Bounds {
            deadline: request.timeout,
            output: request.output,
            disks: disks(&sandbox.spec),
            files: request.files.clone(),
        },
        cpu_time: request.cpu_time,
        interpreter: prepared.interpreter,
        packages: prepared.packages,
    };
    start_message(Kind::Job, &job, request.workspace.tar(), &request.stdin)
        .map_err(RunError::TooLarge)
}

/// The file systems that a program can fill.
pub(crate) fn disks(spec: &SandboxSpec) -> Vec<String> {
    let root = (spec.root == RootAccess::Open).then_some("/");
    [&*spec.workdir, "/tmp", "/dev/shm"].into_iter().chain(root).map(str::to_owned).collect()
}

fn from_failed(failed: Failed) -> RunError {
    let Failed { cause, message } = failed;
    let message = said(&message);
    match cause {
        FailedCause::WorkspaceFull => RunError::WorkspaceFull(message),
        FailedCause::Workspace => RunError::Workspace(message),
        FailedCause::Command | FailedCause::Folder | FailedCause::Kernel => {
            RunError::Command(message)
        }
        FailedCause::Protocol => RunError::Protocol(message),
        FailedCause::Packages => RunError::NotBound(refused(Call::Bind, message.to_string())),
    }
}
