//! Starts the processes of the agent.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isolator_runner::wire::agent::{Failure, StartProcess};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{errno, opening, system};
use crate::packages;
use crate::process::{OomScore, find, nonblocking};

/// A process that was just started.
pub(super) struct Started {
    pub(super) pid: Pid,
    /// Readable once the process has ended.
    pub(super) pidfd: OwnedFd,
    pub(super) streams: Streams,
    pub(super) cwd: PathBuf,
}

/// The streams of a process. None of them blocks.
pub(super) enum Streams {
    /// Three pipes; the first may be closed from the beginning.
    Pipes(Option<File>, [Option<File>; 2]),
    /// A terminal.
    Terminal(File),
}

/// Starts a process.
pub(super) fn start(
    start: &StartProcess,
    home: &Path,
    oom_score: &OomScore,
) -> Result<Started, Failure> {
    let cwd = match &start.cwd {
        Some(cwd) => opening::resolve(home, cwd),
        None => home.to_owned(),
    };
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, &cwd, folder, Mode::empty())
        .map_err(|errno| Failure::Start(errno.raw_os_error()))?;
    let failed = |error: io::Error| Failure::Program(errno(&error));
    let (name, args) = start.argv.split_first().ok_or(Failure::Program(libc::ENOENT))?;
    let mut command = Command::new(find(name));
    let env = packages::variables(&start.env, packages::present().as_ref());
    command.arg0(name).args(args).envs(env).current_dir(&cwd);
    system::lead(&mut command, start.terminal.is_some());
    let streams = match start.terminal {
        Some(size) => {
            let (ours, theirs) = system::terminal(size).map_err(failed)?;
            let copy = || theirs.try_clone().map_err(failed);
            command.stdin(copy()?).stdout(copy()?).stderr(theirs);
            Streams::Terminal(ours)
        }
        None => {
            let [out, err] = [io::pipe().map_err(failed)?, io::pipe().map_err(failed)?];
            command.stdout(out.1).stderr(err.1);
            let stdin = if start.keep_stdin {
                let (theirs, ours) = io::pipe().map_err(failed)?;
                command.stdin(theirs);
                Some(nonblocking(ours.into()).map_err(failed)?)
            } else {
                command.stdin(Stdio::null());
                None
            };
            let ours = |pipe: PipeReader| nonblocking(pipe.into()).map_err(failed);
            Streams::Pipes(stdin, [Some(ours(out.0)?), Some(ours(err.0)?)])
        }
    };
    let child = oom_score.of_program(|| command.spawn()).map_err(failed)?;
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    let pidfd = pidfd.map_err(|errno| {
        // An error means that it has ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        Failure::Program(errno.raw_os_error())
    })?;
    Ok(Started { pid, pidfd, streams, cwd })
}
