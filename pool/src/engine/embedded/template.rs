//! Templates: interpreters that have imported modules and are forked into sandboxes.
//!
//! A template belongs to a launcher, because a process can only enter the process namespaces below its own. It is a
//! process of the image with nearly all restrictions of a sandbox; what it may do more is to enter sandboxes of the same image.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::cgroup::Cgroup;
use super::launcher::Created;
use super::live;
use crate::engine::store::Held;

/// How long a template may take to import its modules.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a fork may take. It takes some milliseconds.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

/// A template is replaced when it is this old, or after this many forks: all of them have its layout of memory and its
/// seed of hashes.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);
const MAX_FORKS: u32 = 10_000;

/// Most descriptors of a request.
const MOST_DESCRIPTORS: usize = 16;

/// What a fork does, in the order of the numbers of the steps, which begin with one.
const STEPS: [&str; 5] = [
    "start a process",
    "join the sandbox's control groups",
    "enter the sandbox's namespaces",
    "start a process in the sandbox",
    "copy the interpreter",
];

/// A template that programs have asked for saves something if its imports take this many times as much CPU time as its start
/// did before them. A start takes about as long as a fork and what follows it, on a slow or busy machine as on others.
const WORTH_IT: u32 = 2;

/// What a template may be.
pub(super) struct Bounds {
    /// Most memory of its modules, in bytes.
    pub(super) memory: u64,
    /// Whether its modules are only a guess at what programs will ask for.
    pub(super) is_asked: bool,
}

/// A running template.
pub(super) struct Template {
    socket: UnixDatagram,
    log: OwnedFd,
    process: Arc<OwnedFd>,
    cgroup: Option<Cgroup>,
    born: Instant,
    forks: u32,
    /// Whether its answer to the last request was not read yet.
    is_asked: bool,
    tasks: TaskTracker,
    _image: Arc<Held>,
}

/// What a template says when it is ready: `ready`, two times in nanoseconds, and the missing modules.
struct Ready<'a> {
    /// CPU time of its start, before the imports.
    start: Duration,
    /// CPU time of its imports.
    imports: Duration,
    /// Modules that the image does not have.
    missing: Vec<&'a str>,
}

impl<'a> Ready<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.strip_prefix("ready ")?.split_whitespace();
        let mut time = || words.next()?.parse().ok().map(Duration::from_nanos);
        Some(Self { start: time()?, imports: time()?, missing: words.collect() })
    }
}

/// Why there is no fork.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForkError {
    /// Nothing has come into the sandbox.
    #[error("{0}")]
    NotForked(String),
    /// It is not known what is in the sandbox.
    #[error("{0}")]
    Lost(String),
}

impl Template {
    /// Takes a process that was just started, and waits until it has imported its modules.
    ///
    /// # Errors
    ///
    /// What went wrong, with what it printed.
    pub(super) async fn new(
        created: Created,
        cgroup: Option<Cgroup>,
        image: Arc<Held>,
        bounds: Bounds,
        tasks: &TaskTracker,
    ) -> Result<Self, String> {
        let Created { stream, log, process } = created;
        let socket = std::os::unix::net::UnixDatagram::from(stream);
        let prepared = socket.set_nonblocking(true).and_then(|()| Ok(ioctl_fionbio(&log, true)?));
        let socket = prepared.and_then(|()| UnixDatagram::from_std(socket));
        let process = Arc::new(process);
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                end(tasks, process, cgroup);
                return Err(error.to_string());
            }
        };
        let born = Instant::now();
        let (forks, is_asked, tasks) = (0, false, tasks.clone());
        let template =
            Self { socket, log, process, cgroup, born, forks, is_asked, tasks, _image: image };
        let mut line = [0; 4096];
        let said = tokio::time::timeout(READY_TIMEOUT, template.receive(&mut line)).await;
        let said = match said {
            Err(_) => return Err(format!("it was not ready within {READY_TIMEOUT:?}")),
            Ok(Err(error)) => return Err(error.to_string()),
            Ok(Ok(length)) => String::from_utf8_lossy(&line[..length]).into_owned(),
        };
        let Some(ready) = Ready::parse(&said) else {
            return Err(format!("it ended: {}", template.printed().unwrap_or_default()));
        };
        if let Some(printed) = template.printed() {
            return Err(format!("it printed {printed:?}"));
        }
        if template.can_read_its_program() {
            return Err("its program can be read, so its forks could lock or watch it".to_owned());
        }
        if let Some(more @ 1..) =
            template.memory().and_then(|memory| memory.checked_sub(bounds.memory))
        {
            let more = more.div_ceil(1 << 20);
            return Err(format!("it takes {more} MiB more than preload.memoryMB allows"));
        }
        if bounds.is_asked {
            if !ready.missing.is_empty() {
                return Err(format!("the image has no module {}", ready.missing.join(" ")));
            }
            if ready.imports < ready.start * WORTH_IT {
                return Err("importing its modules takes less time than forking it".to_owned());
            }
        }
        Ok(template)
    }

    /// Whether it should be replaced.
    pub(super) fn is_old(&self) -> bool {
        self.born.elapsed() > MAX_AGE || self.forks >= MAX_FORKS
    }

    pub(super) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// What the kernel tells of it in `/proc`.
    fn directory(&self) -> Option<PathBuf> {
        let number = self.process.as_raw_fd();
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let pid = about.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
        Some(Path::new("/proc").join(pid))
    }

    fn can_read_its_program(&self) -> bool {
        const READ: u32 = 0o444;
        let program = self.directory().and_then(|path| fs::metadata(path.join("exe")).ok());
        program.is_none_or(|program| program.permissions().mode() & READ != 0)
    }

    /// Its anonymous memory in bytes, if it has not ended.
    fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(self.directory()?.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// Forks the interpreter into a sandbox: `process` is its runner, `doors` are the files to join its control groups.
    ///
    /// # Errors
    ///
    /// Why it could not. The template is of no more use then.
    pub(super) async fn fork(
        &mut self,
        user: (u32, u32),
        process: BorrowedFd<'_>,
        doors: &[std::fs::File],
    ) -> Result<(), ForkError> {
        if self.is_asked {
            // Nobody waited for its answer to the last request.
            let answered = self.answer().await;
            answered.map_err(|error| ForkError::NotForked(error.to_string()))?;
        }
        self.forks += 1;
        let descriptors: Vec<_> =
            [process].into_iter().chain(doors.iter().map(AsFd::as_fd)).collect();
        let request = [user.0.to_ne_bytes(), user.1.to_ne_bytes()].concat();
        let sent = self.send(&request, &descriptors).await;
        sent.map_err(|error| ForkError::NotForked(error.to_string()))?;
        self.is_asked = true;
        let answer = self.answer().await.map_err(|error| ForkError::Lost(error.to_string()))?;
        let [step, errno] = [0, 4].map(|at| {
            u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]])
        });
        let step = match step {
            0 => return Ok(()),
            step => STEPS.get(step as usize - 1).unwrap_or(&"do what it was asked"),
        };
        let error = io::Error::from_raw_os_error(errno as i32);
        Err(ForkError::NotForked(format!("it could not {step}: {error}")))
    }

    /// Waits for the answer to a request.
    async fn answer(&mut self) -> io::Result<[u8; 8]> {
        let mut answer = [0; 8];
        let received = tokio::time::timeout(FORK_TIMEOUT, self.receive(&mut answer)).await;
        match received
            .map_err(|_| io::Error::other(format!("it did not fork within {FORK_TIMEOUT:?}")))??
        {
            8 => {
                self.is_asked = false;
                Ok(answer)
            }
            _ => Err(io::Error::other("it has ended")),
        }
    }

    async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("a sandbox has too many control groups"));
        }
        let parts = [io::IoSlice::new(bytes)];
        let mut send = || Ok(sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?);
        loop {
            self.socket.writable().await?;
            match self.socket.try_io(Interest::WRITABLE, &mut send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent.map(|_| ()),
            }
        }
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(buffer).await
    }

    /// The last line that it printed.
    fn printed(&self) -> Option<String> {
        let mut said = vec![0; 4096];
        let length = rustix::io::read(&self.log, &mut said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[..length]);
        said.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        end(&self.tasks, Arc::clone(&self.process), self.cgroup.take());
    }
}

/// Kills a template and removes its groups.
fn end(tasks: &TaskTracker, process: Arc<OwnedFd>, cgroup: Option<Cgroup>) {
    tasks.spawn_blocking(move || {
        if let Err(error) = live::remove(Some(process), cgroup) {
            tracing::warn!(%error, "a template could not be removed");
        }
    });
}
