//! The runner's main sequence: report ready, preload if asked, and serve one job or one session.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolator_runner::wire::{Kind, Ready, VERSION};
use rustix::process::{DumpableBehavior, Pid, set_child_subreaper, set_dumpable_behavior};

use crate::forks::Forks;
use crate::frame_writer::FrameWriter;
use crate::install::Installs;
use crate::preload::Preloads;
use crate::process::OomScore;
use crate::request::{First, NotRun, receive, receive_first};
use crate::{NAME, cgroup, session};

/// How long to wait until process 1 is ready.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

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
    let installs = Installs::listen();
    let oom_score = OomScore::open();
    // From here on no process of the same user can read this one's memory or descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Orphans of the program become children of the runner, which reaps them: process 1 does not.
    set_child_subreaper(Some(rustix::process::getpid()))?;

    // Plain files: writes must not be buffered by line.
    let mut to_server = FrameWriter::new(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    let from_server = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let from_server = BufReader::with_capacity(64 * 1024, from_server);
    to_server.send(Kind::Ready, &Ready { version: VERSION })?;
    match serve(forks, installs, &oom_score, from_server, &mut to_server) {
        Ok(()) => Ok(()),
        Err(NotRun::Failed(failed)) => to_server.send(Kind::Failed, &failed),
        Err(NotRun::Over(error)) => match error.kind() {
            // The server does not need the sandbox anymore.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        },
    }
}

/// Starts interpreters ahead, until a job or a session comes, and serves that.
fn serve(
    forks: Option<Forks>,
    installs: Installs,
    oom_score: &OomScore,
    mut from_server: BufReader<File>,
    to_server: &mut FrameWriter<File>,
) -> Result<(), NotRun> {
    let mut preloads = Preloads::default();
    let mut before = cgroup::Counters::read();
    loop {
        match receive_first(&mut from_server)? {
            First::Preload(preload) => {
                preloads.start(preload, oom_score, forks.as_ref());
                before = cgroup::Counters::read();
                to_server.send(Kind::Preloaded, &preloads.report())?;
            }
            First::Job(job) => {
                // The program must not find it.
                drop(forks);
                let request = receive(job, &mut from_server)?;
                return session::run_job(
                    request,
                    before,
                    preloads,
                    installs,
                    oom_score,
                    from_server,
                    to_server,
                );
            }
            First::Session(session) => {
                return session::serve(
                    session,
                    preloads,
                    forks,
                    installs,
                    oom_score,
                    from_server,
                    to_server,
                );
            }
        }
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
