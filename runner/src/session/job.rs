//! The run of one program: a session with one cell, which ends with it.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Exit, Kind};

use super::Session;
use super::running::{Others, Running};
use crate::frame_writer::FrameWriter;
use crate::install::Installs;
use crate::packages::{self, Links};
use crate::preload::{Preloads, Taken};
use crate::process::OomScore;
use crate::request::{NotRun, Request};
use crate::{cgroup, changes, processes};

/// How long the runner stays after its report.
const EXIT_DELAY: Duration = Duration::from_millis(50);

/// Runs a program and reports. `counted` is from before its start.
///
/// # Errors
///
/// When it did not run, or has ended the runner's work.
pub(crate) fn run_job(
    request: Request,
    counted: cgroup::Counters,
    preloads: Preloads,
    installs: Installs,
    oom_score: &OomScore,
    from_server: BufReader<File>,
    to_server: &mut FrameWriter<File>,
) -> Result<(), NotRun> {
    let Request { mut job, stdin, mut given, unpack } = request;
    let preload_memory = preloads.memory();
    let workdir = PathBuf::from(&job.workdir);
    if let Some(packages) = &mut job.packages {
        packages::make_ready(packages, &workdir, Links::AsFewAsPossible)?;
    }
    let packages = job.packages.clone();
    let mut session =
        Session::new(workdir, packages, installs, counted, oom_score, from_server, to_server);
    // A program may kill the runner as soon as it starts. Without this frame the server would think that the
    // sandbox failed, and run the program again.
    session.to_server.send_empty(Kind::Started)?;
    let started = Instant::now();
    let Taken { program, spares } = preloads.take(&job, &stdin);
    let preloaded = program.is_some();
    let (process, cpu_before) = match program {
        Some(program) => program,
        None => {
            let (argv, env, folder) = (&job.argv, &job.env, &session.workdir);
            (session.spawn(argv, env, folder, &stdin, job.cpu_time)?, Duration::ZERO)
        }
    };
    let spawn = started.elapsed();
    let others = Others::End(spares);
    let running = Running::program(process, others, started, cpu_before, &job.bounds);
    let ended = session.supervise(running, &stdin, 0)?;
    let exit = ended.into_exit(&session.counted, &job.bounds.disks);
    let (more_files, in_tmp) = changes::report(
        &session.workdir,
        &mut given,
        job.bounds.files.as_ref(),
        exit.wall,
        session.to_server,
    )?;
    let peak_memory = exit.peak_memory.map(|peak| peak.saturating_sub(preload_memory));
    let exit = Exit { peak_memory, more_files, in_tmp, unpack, spawn, preloaded, ..exit };
    session.to_server.send(Kind::Exit, &exit)?;
    // Ending processes now would keep the engine and the kernel busy while the report is on its
    // way to the caller. Usually the sandbox is removed meanwhile.
    std::thread::sleep(EXIT_DELAY);
    processes::kill_everything();
    Ok(())
}
