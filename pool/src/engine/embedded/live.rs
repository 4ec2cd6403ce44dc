//! A sandbox that runs: its streams, its state, its end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio_util::io::ReaderStream;
use tokio_util::task::TaskTracker;

use super::cgroup::Cgroup;
use super::launcher::{Created, Launcher};
use super::refused;
use crate::engine::runner_log::RunnerLog;
use crate::engine::store::Held;
use crate::engine::{Call, Channel, SandboxName, SandboxState};

/// How long a process that was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it takes if nothing is in its way.
const MOMENT: Duration = Duration::from_millis(100);

/// What is read from a runner at once, and of what it says besides.
const READ: usize = 64 * 1024;
const READ_OF_LOG: usize = 512;

/// A sandbox that this process has made.
pub(super) struct Live {
    /// Its groups, where it has some.
    pub(super) cgroup: Option<Cgroup>,
    /// Process 1.
    pub(super) process: Arc<OwnedFd>,
    /// The runner's stream and log, until they are asked for.
    streams: Option<(OwnedFd, OwnedFd)>,
    /// With whose end that of the sandbox comes.
    launcher: Weak<Launcher>,
    _image: Arc<Held>,
}

impl Live {
    pub(super) fn new(
        created: Created,
        cgroup: Option<Cgroup>,
        launcher: &Arc<Launcher>,
        image: Arc<Held>,
    ) -> Self {
        let Created { stream, log, process } = created;
        Self {
            cgroup,
            process: Arc::new(process),
            streams: Some((stream, log)),
            launcher: Arc::downgrade(launcher),
            _image: image,
        }
    }

    /// The stream to the runner, which is there once.
    pub(super) fn open(&mut self, name: &SandboxName, tasks: &TaskTracker) -> io::Result<Channel> {
        let streams = self.streams.take();
        let (stream, log) = streams.ok_or_else(|| io::Error::other("its stream is taken"))?;
        rustix::io::ioctl_fionbio(&log, true)?;
        let said = ReaderStream::with_capacity(pipe::Receiver::from_owned_fd(log)?, READ_OF_LOG);
        let log = RunnerLog::new(name.clone());
        tasks.spawn(pass_on(said, log));
        let stream = std::os::unix::net::UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        let (output, input) = UnixStream::from_std(stream)?.into_split();
        let output = ReaderStream::with_capacity(output, READ);
        let output = output.map_err(|error| refused(Call::Arm, error)).boxed();
        Ok(Channel { input: Box::new(input), output })
    }

    pub(super) fn state(&self) -> SandboxState {
        if has_ended(&self.process, Duration::ZERO) {
            // The kernel closes a launcher's socket before it ends what is in its namespace.
            let is_there = self.launcher.upgrade().is_some_and(|launcher| !launcher.has_ended());
            return if is_there { SandboxState::Ended } else { SandboxState::Stopped };
        }
        match self.cgroup.as_ref().map(Cgroup::is_frozen) {
            Some(Ok(true)) => SandboxState::Paused,
            _ => SandboxState::Running,
        }
    }
}

/// Kills a sandbox, waits until process 1 and with it every other is gone, and removes its groups. Blocks.
pub(super) fn remove(process: Option<Arc<OwnedFd>>, cgroup: Option<Cgroup>) -> io::Result<()> {
    if let Some(process) = process {
        match pidfd_send_signal(&*process, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        // What is frozen by the first version's freezer dies when it is thawed. An error means that the
        // groups are gone.
        let _ = cgroup.as_ref().map(Cgroup::thaw);
        let killed = Instant::now();
        while !has_ended(&process, MOMENT) {
            if killed.elapsed() > PATIENCE {
                return Err(io::Error::other("its process 1 could not be killed"));
            }
            // It may be waiting in the kernel for another, which would otherwise die only after it: one that
            // sleeps with the lock of a pipe that the runner reads, for one.
            let _ = cgroup.as_ref().map(Cgroup::kill);
        }
    }
    cgroup.map_or(Ok(()), |cgroup| cgroup.remove())
}

/// Whether a process ends within some time.
fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let within = within.try_into().ok();
    poll(&mut fds, within.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Passes on what the runner says besides its frames, until nothing more of it would be logged.
async fn pass_on(mut said: ReaderStream<pipe::Receiver>, mut log: RunnerLog) {
    while let Some(Ok(piece)) = said.next().await {
        if !log.pass_on(&piece) {
            return;
        }
    }
}
