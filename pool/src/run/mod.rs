//! A run: one request's job in one armed sandbox, which is gone afterwards.

pub(crate) mod interpreter;
pub mod outcome;
pub mod output;
mod request;
pub mod workspace;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use isolator_runner::wire::{self, Exit, Failed, FailedCause, Job, Kind, Wanted, WireError};

use crate::engine::limits::Resources;
use crate::engine::preload::Want;
use crate::engine::{Call, Engine, EngineError, SandboxName, SandboxSpec, SandboxState, bounded};
use crate::packages::PackageSet;
use crate::quote::said;
use crate::run::outcome::{Outcome, Status};
use crate::run::output::Output;
use crate::sandbox::connection::{ConnectionError, Frame};
use crate::sandbox::{Armed, Sandbox, SandboxError};

pub use self::request::RunRequest;

/// How much longer than the program's deadline the server waits for the runner's report: it has to
/// kill, to drain and to send, on the sandbox's share of the CPU.
const REPORT_GRACE: Duration = Duration::from_secs(5);

/// From the first byte sent to the program's start: transfer and unpacking on the sandbox's share of
/// the CPU.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A program or a cell starts milliseconds after it was sent. If it takes this long, the sandbox may be frozen, which is
/// checked.
pub(crate) const FREEZE_CHECK_AFTER: Duration = Duration::from_secs(1);

/// Where the time of a run went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// Changing the sandbox's limits, where the request asked for others.
    pub limit: Duration,
    /// Giving the sandbox a set of packages, where the request asked for one.
    pub bind: Duration,
    /// Unpacking the workspace, as the runner tells.
    pub unpack: Duration,
    /// Starting the program, as the runner tells.
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
    WorkspaceFull(String),
    /// The workspace could not be unpacked.
    #[error("the files could not be unpacked: {0}")]
    Workspace(String),
    /// The language's command can't be started in its image.
    #[error("the image can't run the language's command: {0}")]
    Command(String),
    /// The sandbox was paused, and the engine did not thaw it.
    #[error("a paused sandbox could not be thawed: {0}")]
    NotThawed(EngineError),
    /// An interpreter was being forked into the sandbox for the program, and it is not known what came of it. The program
    /// has not begun.
    #[error("no interpreter came into the sandbox, so the program was not started: {0}")]
    NotForked(SandboxError),
    /// The set of packages can't be brought to where sandboxes are made. It would be the same with another sandbox.
    #[error("the packages can't be brought into a sandbox: {0}")]
    Packages(EngineError),
    /// The sandbox was not given its packages. The program has not begun.
    #[error("the sandbox did not get its packages, so the program was not started: {0}")]
    NotBound(EngineError),
    /// The runner ended, or took too long, before it had started the program.
    #[error("the sandbox did not start the program; the sandbox is {0}")]
    NotStarted(SandboxState),
    /// The request is larger than a frame.
    #[error("the arguments and variables are too large: {0}")]
    TooLarge(WireError),
}

/// Runs the job. Dropping the future abandons the run, and the sandbox with everything in it.
pub(crate) async fn run(
    mut sandbox: Sandbox<Armed>,
    request: &RunRequest,
    want: &Want,
    client: &str,
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
    let is_alone = |memory| {
        if let Some(take_back) = take_back.take() {
            lowering = Some(take_back.begin(memory, tasks));
        }
    };
    let report = exchange(&mut sandbox, &message, request.timeout, &mut output, is_alone).await?;
    let total = sent.elapsed();
    if matches!(report, Report::Late | Report::Closed) {
        if !output.started {
            sandbox.state.thawed().await.map_err(RunError::NotThawed)?;
        }
        // The engine is asked about the sandbox next, and gets one call after the other.
        if let Some(lowering) = lowering {
            lowering.settle().await;
        }
    }

    let times = RunTimes { limit, bind, total, ..RunTimes::default() };
    match report {
        Report::NotThawed(error) => Err(RunError::NotThawed(error)),
        Report::Exit(exit) => {
            // What a runner says is not believed beyond what can be.
            sandbox.imported(client, want, exit.cpu.min(total));
            let times = RunTimes {
                unpack: exit.unpack,
                spawn: exit.spawn,
                preloaded: exit.preloaded,
                ..times
            };
            Ok((Outcome::from_exit(exit, output, &disks(&sandbox.spec)), times))
        }
        Report::Failed(failed) => {
            if let (FailedCause::Packages, Some(set)) = (failed.cause, packages) {
                sandbox.engine.missed(set);
            }
            Err(from_failed(failed))
        }
        Report::Late => match sandbox.state().await? {
            state if !output.started => Err(RunError::NotStarted(state)),
            SandboxState::Running => {
                Ok((Outcome::without_report(Status::Timeout, output, total), times))
            }
            // Somebody else has frozen or ended it; otherwise its runner would have reported.
            _ => Err(SandboxError::Lost.into()),
        },
        Report::Closed => match sandbox.settled_state().await? {
            state if !output.started => Err(RunError::NotStarted(state)),
            // The runner has ended, and with it the sandbox. Either the program killed it, or the kernel did because
            // memory ran out.
            SandboxState::Running | SandboxState::Ended => {
                Ok((Outcome::without_report(Status::Killed, output, total), times))
            }
            _ => Err(SandboxError::Lost.into()),
        },
    }
}

/// A sandbox that has what a program needs.
pub(crate) struct Prepared {
    /// The interpreter that the program should have.
    pub(crate) interpreter: Wanted,
    /// Its set of packages, if it has one.
    pub(crate) packages: Option<wire::Packages>,
    bind: Duration,
    limit: Duration,
}

/// Gives a sandbox its packages, and does what a frozen one can't have done to it, where the request needs that.
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
    let fork = sandbox.better_fork(want);
    if has_other_limits || fork.is_some() {
        sandbox.state.thawed().await.map_err(RunError::NotThawed)?;
    }
    if has_other_limits {
        sandbox.limit(resources).await?;
    }
    let has_modules = match fork {
        Some(fork) => sandbox.fork(fork).await.map_err(RunError::NotForked)?,
        None => false,
    };
    let interpreter = if has_modules { Wanted::Loaded } else { want.interpreter };
    Ok(Prepared { interpreter, packages, bind, limit: began.elapsed() })
}

/// Gives a sandbox a set of packages.
async fn give(
    sandbox: &mut Sandbox<Armed>,
    set: &Arc<PackageSet>,
) -> Result<wire::Packages, RunError> {
    if sandbox.spec.packages != Some(set.interpreter) {
        let message =
            "its sandboxes have no place for them: its language has no packages of this kind";
        let message = message.to_owned();
        return Err(RunError::Packages(EngineError::Refused { call: Call::Bind, message }));
    }
    let provide = sandbox.engine.provide(set, &sandbox.spec.image);
    bounded(Call::Provide, provide).await.map_err(RunError::Packages)?;
    sandbox.bind(set).await.map_err(RunError::NotBound)
}

/// Sends the job and reads frames at the same time: a runner that reports a failure half-way stops reading,
/// and one whose frames nobody reads can't go on.
async fn exchange(
    sandbox: &mut Sandbox<Armed>,
    message: &[u8],
    timeout: Duration,
    output: &mut Output,
    mut is_alone: impl FnMut(u64),
) -> Result<Report, SandboxError> {
    let engine = Arc::clone(&sandbox.engine);
    let name = sandbox.lease.name().clone();
    let (mut sender, mut receiver) = sandbox.connection.split();
    let mut thawed = std::pin::pin!(sandbox.state.thawed());
    let mut is_thawing = true;
    let mut freeze_check = std::pin::pin!(async {
        tokio::time::sleep(FREEZE_CHECK_AFTER).await;
        thaw_if_frozen(&*engine, &name).await;
    });
    let mut was_checked = false;
    let mut sending = std::pin::pin!(sender.send(message));
    let mut is_sending = true;
    let mut deadline = std::pin::pin!(tokio::time::sleep(START_TIMEOUT));
    loop {
        tokio::select! {
            frame = receiver.next() => {
                let had_started = output.started;
                if let Some(report) = handle_frame(frame, output)? {
                    return Ok(report);
                }
                if output.started && !had_started {
                    let until = tokio::time::Instant::now() + timeout + REPORT_GRACE;
                    deadline.as_mut().reset(until);
                }
                if let Some(memory) = output.alone.take() {
                    is_alone(memory);
                }
            }
            sent = &mut sending, if is_sending => {
                is_sending = false;
                // A stream that broke while sending says why on the way back.
                if let Err(error) = sent {
                    tracing::debug!(%error, "a job could not be sent");
                }
            }
            answer = &mut thawed, if is_thawing => {
                is_thawing = false;
                if let Err(error) = answer && !output.started {
                    return Ok(Report::NotThawed(error));
                }
            }
            // A sandbox that is being thawed is not checked.
            () = &mut freeze_check, if !output.started && !was_checked && !is_thawing => {
                was_checked = true;
            }
            () = &mut deadline => return Ok(Report::Late),
        }
    }
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
        disks: disks(&sandbox.spec),
        deadline: request.timeout,
        cpu_time: request.cpu_time,
        output: request.output,
        interpreter: prepared.interpreter,
        files: request.files.clone(),
        packages: prepared.packages,
    };
    let tar = request.workspace.tar();
    let mut message = Vec::with_capacity(tar.len() + request.stdin.len() + 4096);
    wire::push_message(&mut message, Kind::Job, &job).map_err(RunError::TooLarge)?;
    wire::push_bytes(&mut message, Kind::Tar, tar);
    wire::push_bytes(&mut message, Kind::Stdin, &request.stdin);
    message.extend_from_slice(&wire::header(Kind::Go, 0));
    Ok(message)
}

/// The file systems that a program can fill.
pub(crate) fn disks(spec: &SandboxSpec) -> Vec<String> {
    vec![spec.workdir.clone(), "/tmp".to_owned(), "/dev/shm".to_owned()]
}

/// How the exchange with the runner ended.
enum Report {
    Exit(Exit),
    Failed(Failed),
    /// The engine did not thaw the sandbox.
    NotThawed(EngineError),
    /// The stream ended without a report.
    Closed,
    /// There was no report in time.
    Late,
}

/// Thaws a sandbox that somebody froze while it was waiting.
pub(crate) async fn thaw_if_frozen(engine: &dyn Engine, name: &SandboxName) {
    let thawed = match bounded(Call::State, engine.state(name)).await {
        Ok(SandboxState::Paused) => bounded(Call::Resume, engine.resume(name)).await,
        Ok(_) => return,
        Err(error) => Err(error),
    };
    match thawed {
        Ok(()) => {
            tracing::warn!(sandbox = %name, "the sandbox had been paused from outside; it was thawed")
        }
        Err(error) => {
            tracing::warn!(sandbox = %name, %error, "the state of a slow sandbox could not be checked")
        }
    }
}

/// Takes the next frame; a report is the last one.
fn handle_frame(
    frame: Option<Result<Frame, ConnectionError>>,
    output: &mut Output,
) -> Result<Option<Report>, SandboxError> {
    let (kind, payload) = match frame {
        Some(Ok(frame)) => frame,
        None => return Ok(Some(Report::Closed)),
        // A broken stream counts as closed; the caller checks whether the sandbox is still there.
        Some(Err(ConnectionError::Engine(error))) => {
            tracing::debug!(%error, "the stream of a running sandbox broke");
            return Ok(Some(Report::Closed));
        }
        Some(Err(error)) => return Err(error.into()),
    };
    let broken = |error: WireError| SandboxError::Runner(error.into());
    match kind {
        Kind::Started => output.started = true,
        Kind::Alone if output.started => {
            let wire::Alone { memory } = wire::parse_message(kind, &payload).map_err(broken)?;
            output.alone = Some(memory);
        }
        Kind::Stdout | Kind::Stderr => output.push(kind, &payload),
        Kind::File | Kind::Content => {
            let taken = output.take_file(kind, &payload).map_err(broken)?;
            taken.ok_or_else(|| broken(WireError::Unexpected(kind)))?;
        }
        Kind::Exit => {
            let exit = wire::parse_message(kind, &payload).map_err(broken)?;
            return Ok(Some(Report::Exit(exit)));
        }
        Kind::Failed => {
            let failed = wire::parse_message(kind, &payload).map_err(broken)?;
            return Ok(Some(Report::Failed(failed)));
        }
        other => return Err(broken(WireError::Unexpected(other))),
    }
    Ok(None)
}

fn from_failed(failed: Failed) -> RunError {
    let Failed { cause, message } = failed;
    let message = said(&message);
    match cause {
        FailedCause::WorkspaceFull => RunError::WorkspaceFull(message),
        FailedCause::Workspace => RunError::Workspace(message),
        FailedCause::Command => RunError::Command(message),
        FailedCause::Packages => {
            RunError::NotBound(EngineError::Refused { call: Call::Bind, message })
        }
        FailedCause::Protocol => {
            let error = WireError::Io(std::io::Error::other(message));
            RunError::Sandbox(SandboxError::Runner(error.into()))
        }
    }
}
