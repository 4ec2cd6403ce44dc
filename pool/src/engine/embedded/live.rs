//! A running sandbox: its streams, its state, its removal.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio_util::io::ReaderStream;
use tokio_util::task::TaskTracker;

use super::cgroups::Cgroup;
use super::launcher_client::{LauncherClient, SandboxHandles};
use super::pidfd::has_ended;
use super::refused;
use crate::engine::runner_log::RunnerLog;
use crate::engine::store::Held;
use crate::engine::{Call, Channel, SandboxName, SandboxState};
use crate::packages::PackageSet;

/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is checked whether the process has ended. Usually it has by then.
const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sizes of the buffers for a runner's stream and for its log.
const STREAM_BUFFER: usize = 64 * 1024;
const LOG_BUFFER: usize = 512;

/// A sandbox that this process has made.
pub(super) struct Live {
    /// Its groups, where it has some.
    pub(super) cgroup: Option<Cgroup>,
    /// Process 1.
    pub(super) process: Arc<OwnedFd>,
    /// The runner's stream and log, until they are opened.
    streams: Option<(OwnedFd, OwnedFd)>,
    /// The launcher that made it. The sandbox ends together with it.
    launcher: Weak<LauncherClient>,
    image: Arc<Held>,
    /// The set of packages that it was given before its program began.
    packages: Option<BoundSet>,
    /// The number of sets that it was given while it ran.
    later_sets: u32,
}

/// How often a sandbox can be given a set while it runs, also one that it has already. Each time is a mount, which stays as long as the
/// sandbox.
const MAX_LATER_SETS: u32 = 64;

/// A set of packages that a sandbox was given, or a template has. It may end before them.
#[derive(Debug, Clone)]
pub(super) struct BoundSet {
    /// The set, while it is in use elsewhere.
    pub(super) set: Weak<PackageSet>,
    pub(super) hash: String,
    /// Its path below the folder of all sets.
    pub(super) path: PathBuf,
}

impl Live {
    pub(super) fn new(
        created: SandboxHandles,
        cgroup: Option<Cgroup>,
        launcher: &Arc<LauncherClient>,
        image: Arc<Held>,
    ) -> Self {
        let SandboxHandles { stream, log, process } = created;
        Self {
            cgroup,
            process: Arc::new(process),
            streams: Some((stream, log)),
            launcher: Arc::downgrade(launcher),
            image,
            packages: None,
            later_sets: 0,
        }
    }

    /// Notes its set of packages, before its program begins.
    pub(super) fn give(&mut self, set: BoundSet) -> io::Result<()> {
        match self.packages.replace(set) {
            Some(_) => Err(io::Error::other("it has some already")),
            None => Ok(()),
        }
    }

    /// Notes a set of packages that it gets while it runs.
    pub(super) fn give_while_running(&mut self, _: BoundSet) -> io::Result<()> {
        if self.later_sets >= MAX_LATER_SETS {
            let message =
                format!("it was given {MAX_LATER_SETS} sets already, and can have no more");
            return Err(io::Error::other(message));
        }
        self.later_sets += 1;
        Ok(())
    }

    /// The set of packages of its program, if that began with one. Fails if it got others since: it is not known from which of them the
    /// program imports.
    pub(super) fn packages(&self) -> io::Result<Option<BoundSet>> {
        match self.later_sets {
            0 => Ok(self.packages.clone()),
            _ => Err(io::Error::other("it was given packages while it ran")),
        }
    }

    /// The launcher that made it, unless that is gone.
    pub(super) fn launcher(&self) -> Option<Arc<LauncherClient>> {
        self.launcher.upgrade()
    }

    /// Whether this launcher has made it.
    pub(super) fn is_made_by(&self, launcher: &Arc<LauncherClient>) -> bool {
        self.launcher.as_ptr() == Arc::as_ptr(launcher)
    }

    /// The image that it was made from.
    pub(super) fn image(&self) -> &Held {
        &self.image
    }

    /// Opens the stream to the runner. This works once.
    pub(super) fn open(&mut self, name: &SandboxName, tasks: &TaskTracker) -> io::Result<Channel> {
        let streams = self.streams.take();
        let (stream, log) = streams
            .ok_or_else(|| io::Error::other("the stream to its runner was opened before"))?;
        rustix::io::ioctl_fionbio(&log, true)?;
        let pieces = ReaderStream::with_capacity(pipe::Receiver::from_owned_fd(log)?, LOG_BUFFER);
        let log = RunnerLog::new(name.clone());
        tasks.spawn(pass_on(pieces, log));
        let stream = std::os::unix::net::UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        let (output, input) = UnixStream::from_std(stream)?.into_split();
        let output = ReaderStream::with_capacity(output, STREAM_BUFFER);
        let output = output.map_err(|error| refused(Call::Arm, error)).boxed();
        Ok(Channel { input: Box::new(input), output })
    }

    pub(super) fn state(&self) -> SandboxState {
        if has_ended(&self.process, Duration::ZERO) {
            // When a launcher ends, the kernel closes its socket before it kills what is in its namespace.
            let is_there = self.launcher.upgrade().is_some_and(|launcher| !launcher.has_ended());
            return if is_there { SandboxState::Ended } else { SandboxState::Stopped };
        }
        match self.cgroup.as_ref().map(Cgroup::is_frozen) {
            Some(Ok(true)) => SandboxState::Paused,
            _ => SandboxState::Running,
        }
    }
}

/// Kills a sandbox, waits until process 1 and with it all others are gone, and removes its groups. Blocks.
pub(super) fn remove(process: Option<Arc<OwnedFd>>, cgroup: Option<Cgroup>) -> io::Result<()> {
    if let Some(process) = process {
        match pidfd_send_signal(&*process, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(cgroup) = &cgroup {
            cgroup.let_die();
        }
        let killed = Instant::now();
        while !has_ended(&process, KILL_CHECK_INTERVAL) {
            if killed.elapsed() > KILL_TIMEOUT {
                return Err(io::Error::other("its process 1 was killed but did not end"));
            }
            // Process 1 may wait in the kernel for another process, such as one that holds the lock of a pipe
            // that the runner reads. That one would otherwise be killed only after process 1.
            let _ = cgroup.as_ref().map(Cgroup::kill);
        }
    }
    cgroup.map_or(Ok(()), |cgroup| cgroup.remove())
}

/// Logs the runner's standard error, up to the limit of its log.
async fn pass_on(mut pieces: ReaderStream<pipe::Receiver>, mut log: RunnerLog) {
    while let Some(Ok(piece)) = pieces.next().await {
        if !log.pass_on(&piece) {
            return;
        }
    }
}
