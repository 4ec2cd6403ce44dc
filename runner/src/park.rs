//! The runner's main sequence: report ready, preload if asked, take one job, send one report.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Exit, Failed, FailedCause, Kind, Ready, VERSION};
use rustix::process::{DumpableBehavior, Pid, set_child_subreaper, set_dumpable_behavior};

use crate::forks::Forks;
use crate::frame_writer::FrameWriter;
use crate::packages::{self, Links};
use crate::preload::{Preloads, Taken};
use crate::process::{OomScore, Process};
use crate::program::Program;
use crate::request::{First, NoRequest, Request, receive, receive_first};
use crate::{NAME, cgroup, changes, program, session};

/// How long to wait until process 1 is ready.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the runner stays after its report.
const EXIT_DELAY: Duration = Duration::from_millis(50);

/// Waits for one job and runs it.
///
/// With `forks` the engine can fork interpreters into the sandbox.
///
/// # Errors
///
/// When the process is not inside a sandbox, or the server's end of the stream is gone.
pub(crate) fn park(forks: bool) -> io::Result<()> {
    refuse_to_run_outside_a_sandbox()?;
    let forks = if forks { Some(Forks::listen()?) } else { None };
    let oom_score = OomScore::open();
    // From here on no process of the same user can read this one's memory or descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Orphans of the program become children of the runner, which reaps them: process 1 does not.
    set_child_subreaper(Some(rustix::process::getpid()))?;

    // Plain files: writes must not be buffered by line.
    let mut to_server = FrameWriter::new(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    let from_server = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    to_server.send(Kind::Ready, &Ready { version: VERSION })?;

    let mut from_server = BufReader::with_capacity(64 * 1024, from_server);
    let mut preloads = Preloads::default();
    let mut before = cgroup::Counters::read();
    let request = loop {
        match receive_first(&mut from_server) {
            Ok(First::Preload(preload)) => {
                preloads.start(preload, &oom_score, forks.as_ref());
                before = cgroup::Counters::read();
                to_server.send(Kind::Preloaded, &preloads.report())?;
            }
            Ok(First::Job(job)) => break receive(job, &mut from_server),
            Ok(First::Session(session)) => {
                // The program must not find it.
                drop(forks);
                return session::serve(session, preloads, &oom_score, from_server, &mut to_server);
            }
            Err(none) => break Err(none),
        }
    };
    // The program must not find it.
    drop(forks);
    match request {
        Ok(request) => match run(request, &before, preloads, &oom_score, &mut to_server)? {
            Ok(exit) => {
                to_server.send(Kind::Exit, &exit)?;
                // Ending processes now would keep the engine and the kernel busy while the report is on its
                // way to the caller. Usually the sandbox is removed meanwhile.
                std::thread::sleep(EXIT_DELAY);
                program::kill_everything();
                Ok(())
            }
            Err(failed) => to_server.send(Kind::Failed, &failed),
        },
        Err(NoRequest::Closed) => Ok(()),
        Err(NoRequest::Failed(failed)) => to_server.send(Kind::Failed, &failed),
    }
}

/// The end of a run kills every process it may signal. Inside a sandbox that is the program and
/// what it left behind; anywhere else it would be the machine.
///
/// If the runner is process 1, this is a sandbox. Otherwise process 1 must be that of [`crate::init`], which
/// protects itself only after it has started the runner. So this waits for a while.
fn refuse_to_run_outside_a_sandbox() -> io::Result<()> {
    if rustix::process::getpid() == Pid::INIT {
        return Ok(());
    }
    let until = Instant::now() + INIT_TIMEOUT;
    loop {
        let first = std::fs::read_to_string("/proc/1/comm")?;
        let first = first.trim_end();
        let is_protected = std::fs::read_link("/proc/1/fd/1").is_err();
        if first == NAME && is_protected {
            return Ok(());
        }
        if Instant::now() >= until {
            let message = format!(
                "this is not a sandbox: process 1 is {first:?}, or its descriptors can be read"
            );
            return Err(io::Error::other(message));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the program. The outer error is the stream's, the inner one says why nothing ran.
fn run(
    request: Request,
    before: &cgroup::Counters,
    preloads: Preloads,
    oom_score: &OomScore,
    to_server: &mut FrameWriter<File>,
) -> io::Result<Result<Exit, Failed>> {
    let Request { job, stdin, mut given, unpack } = request;
    let preload_memory = preloads.memory();
    let workdir = Path::new(&job.workdir);
    if let Some(packages) = &job.packages
        && let Err(failed) = packages::make_ready(packages, workdir, Links::AsFewAsPossible)
    {
        return Ok(Err(failed));
    }
    // A program may kill the runner as soon as it starts. Without this frame the server would think that the
    // sandbox failed, and run the program again.
    to_server.send_empty(Kind::Started)?;
    let started = Instant::now();
    let Taken { program, spares } = preloads.take(&job, &stdin);
    let preloaded = program.is_some();
    let (process, ahead) = match program {
        Some(program) => program,
        None => {
            let env = packages::variables(&job.env, job.packages.as_ref());
            match Process::spawn(&job.argv, &env, workdir, oom_score, Some(&stdin)) {
                Ok(spawned) => {
                    // The program runs. It may have taken from the runner what this needs: that is its doing, so the runner ends.
                    let process = spawned.supervised()?;
                    if let Some(cpu_time) = job.cpu_time {
                        process.limit_cpu_time(cpu_time);
                    }
                    (process, Duration::ZERO)
                }
                Err(error) => {
                    let command = job.argv.first().map_or("", String::as_str);
                    let message = format!("{command}: {error}");
                    return Ok(Err(Failed { cause: FailedCause::Command, message }));
                }
            }
        }
    };
    let spawn = started.elapsed();

    let mut uncounted_cpu = HashMap::from([(process.pid, ahead)]);
    uncounted_cpu.extend(spares.pids().map(|pid| (pid, Duration::MAX)));
    let program = Program::new(process, stdin, started, uncounted_cpu, spares);
    let ended = program.supervise(&job, to_server)?;
    let exit = ended.into_exit(before, &job.disks);
    let (more_files, in_tmp) = match &job.files {
        Some(wanted) => {
            let workdir = Path::new(&job.workdir);
            (!changes::send(workdir, &mut given, wanted, to_server)?, changes::in_tmp(exit.wall))
        }
        None => (false, Vec::new()),
    };
    Ok(Ok(Exit {
        peak_memory: exit.peak_memory.map(|peak| peak.saturating_sub(preload_memory)),
        more_files,
        in_tmp,
        unpack,
        spawn,
        preloaded,
        ..exit
    }))
}
