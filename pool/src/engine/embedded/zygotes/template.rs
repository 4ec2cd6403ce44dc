//! Templates: interpreters that have imported modules and are forked into sandboxes.
//!
//! A template belongs to a launcher, because a process can only enter the process namespaces below its own. It is a
//! process of the image with nearly all restrictions of a sandbox; what it may do more is to enter sandboxes of the same image.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isolator_runner::fork::{AWAITED, FOR_TEMPLATE, LONGEST_READY, REQUEST_DESCRIPTORS, STEPS};
use rustix::io::ioctl_fionbio;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::imports::{Ready, TemplateModules};
use crate::engine::EngineError;
use crate::engine::embedded::cgroups::Cgroup;
use crate::engine::embedded::launcher_client::SandboxHandles;
use crate::engine::embedded::live;
use crate::engine::embedded::packet_socket::PacketSocket;
use crate::engine::embedded::pidfd;
use crate::engine::store::Held;

/// How long a template may take to import its modules.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a fork may take. It takes some milliseconds.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

/// A template is replaced when it is this old, or after this many forks: all of them have its layout of memory and its
/// seed of hashes.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);
const MAX_FORKS: u32 = 10_000;

/// The bounds of a template.
pub(super) struct Bounds {
    /// Maximum memory of its modules, in bytes.
    pub(super) memory: u64,
    /// Whether its modules are only a guess at what programs will import.
    pub(super) is_learned: bool,
}

/// A running template; the holder of the lock forks it.
pub(super) type SharedTemplate = Arc<tokio::sync::Mutex<Template>>;

/// A running template.
pub(super) struct Template {
    socket: PacketSocket,
    log: OwnedFd,
    process: Arc<OwnedFd>,
    cgroup: Option<Cgroup>,
    born: Instant,
    forks: u32,
    /// Whether its answer to the last request was not read yet.
    owes_answer: bool,
    tasks: TaskTracker,
    image: Arc<Held>,
    /// The one that it is a copy of, in whose control groups it is.
    source: Option<SharedTemplate>,
}

/// Why a template was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    /// The launcher's message.
    #[error("{0}")]
    NotMade(String),
    /// The engine's error.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error of the connection to it, or of its control groups.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its imports took too long.
    #[error("it was not ready within {READY_TIMEOUT:?}")]
    Late,
    /// The last line that it printed.
    #[error("it ended: {0}")]
    Ended(String),
    /// The last line that it printed.
    #[error("it printed {0:?}")]
    Printed(String),
    /// Its forks have its program as their own.
    #[error("its program can be read, so its forks could lock or watch it")]
    ReadableProgram,
    /// A resource that forks don't copy.
    #[error("it {0}, which its forks would share")]
    Shared(&'static str),
    /// Memory over the limit, in MiB.
    #[error("it takes {0} MiB more than preload.memoryMB allows")]
    TooMuchMemory(u64),
    /// The modules that the image does not have.
    #[error("the image has no module {0}")]
    NoModules(String),
    /// A new interpreter is as quick.
    #[error("importing its modules takes less time than forking it")]
    NotWorthIt,
}

/// Why there is no fork.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForkError {
    /// Nothing has come into the sandbox.
    #[error("{0}")]
    NotForked(#[source] io::Error),
    /// It is not known what is in the sandbox.
    #[error("{0}")]
    Lost(#[source] io::Error),
}

impl Template {
    /// Takes a process that was just started, and waits until it has imported its modules. `learn` gets its report. Also
    /// returns its modules.
    ///
    /// # Errors
    /// The cause, with its last output.
    pub(super) async fn new(
        created: SandboxHandles,
        cgroup: Option<Cgroup>,
        image: Arc<Held>,
        bounds: Bounds,
        tasks: &TaskTracker,
        learn: impl FnOnce(&Ready<'_>),
    ) -> Result<(Self, TemplateModules), TemplateError> {
        let SandboxHandles { stream, log, process } = created;
        let prepared = ioctl_fionbio(&log, true).map_err(io::Error::from);
        let socket = prepared.and_then(|()| PacketSocket::new(stream));
        let process = Arc::new(process);
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                end(tasks, process, cgroup);
                return Err(error.into());
            }
        };
        let born = Instant::now();
        let (forks, owes_answer, tasks) = (0, false, tasks.clone());
        let source = None;
        let template =
            Self { socket, log, process, cgroup, born, forks, owes_answer, tasks, image, source };
        template.check(bounds, learn).await
    }

    /// Takes a copy of a template, and waits until it has imported what it needs.
    ///
    /// # Errors
    /// The cause, with its last output.
    pub(super) async fn of_copy(
        copy: Copy,
        of: &SharedTemplate,
    ) -> Result<(Self, TemplateModules), TemplateError> {
        let Copy { socket, log, process, image, tasks } = copy;
        let (forks, owes_answer, cgroup) = (0, false, None);
        let (born, source) = (Instant::now(), Some(Arc::clone(of)));
        let template =
            Self { socket, log, process, cgroup, born, forks, owes_answer, tasks, image, source };
        // The copy has the memory of the other one, whose groups limit both.
        let bounds = Bounds { memory: u64::MAX, is_learned: false };
        template.check(bounds, |_| ()).await
    }

    /// Waits until it is ready, and checks that it can be forked.
    async fn check(
        self,
        bounds: Bounds,
        learn: impl FnOnce(&Ready<'_>),
    ) -> Result<(Self, TemplateModules), TemplateError> {
        let template = self;
        let mut line = vec![0; LONGEST_READY];
        let said = tokio::time::timeout(READY_TIMEOUT, template.receive(&mut line)).await;
        let length = said.map_err(|_| TemplateError::Late)??;
        let said = String::from_utf8_lossy(&line[..length]).into_owned();
        let Some(ready) = Ready::parse(&said) else {
            return Err(TemplateError::Ended(template.printed().unwrap_or_default()));
        };
        learn(&ready);
        if let Some(printed) = template.printed() {
            return Err(TemplateError::Printed(printed));
        }
        if template.can_read_its_program() {
            return Err(TemplateError::ReadableProgram);
        }
        if let Some(shared) = template.shared_with_forks() {
            return Err(TemplateError::Shared(shared));
        }
        if let Some(more @ 1..) =
            template.memory().and_then(|memory| memory.checked_sub(bounds.memory))
        {
            return Err(TemplateError::TooMuchMemory(more.div_ceil(1 << 20)));
        }
        if bounds.is_learned {
            let missing = ready.missing();
            if !missing.is_empty() {
                return Err(TemplateError::NoModules(missing.join(" ")));
            }
            if !ready.is_worth_it() {
                return Err(TemplateError::NotWorthIt);
            }
        }
        template.cgroup.as_ref().map_or(Ok(()), Cgroup::share_equally)?;
        Ok((template, ready.known()))
    }

    /// The one that it is a copy of.
    pub(super) fn source(&self) -> Option<&SharedTemplate> {
        self.source.as_ref()
    }

    /// Whether it should be replaced.
    pub(super) fn is_old(&self) -> bool {
        self.born.elapsed() > MAX_AGE || self.forks >= MAX_FORKS
    }

    /// Its directory in `/proc`, if it has not ended.
    fn directory(&self) -> Option<PathBuf> {
        pidfd::directory(&self.process).ok()
    }

    fn can_read_its_program(&self) -> bool {
        const READ: u32 = 0o444;
        let program = self.directory().and_then(|path| fs::metadata(path.join("exe")).ok());
        program.is_none_or(|program| program.permissions().mode() & READ != 0)
    }

    /// The resource that forks would share beyond a copy of the memory, in words. Unreadable ones count, too.
    fn shared_with_forks(&self) -> Option<&'static str> {
        let names = |of: &str| -> Option<Vec<String>> {
            let entries = fs::read_dir(self.directory()?.join(of)).ok()?;
            entries.map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
        };
        let maps = self.directory().and_then(|path| fs::read_to_string(path.join("maps")).ok());
        let is_alone = self.cgroup.as_ref().is_none_or(|it| it.has_one_process().unwrap_or(false));
        if !is_alone {
            return Some("has started processes");
        }
        match (names("task"), names("fd"), maps) {
            (Some(threads), Some(open), Some(maps)) => shared(&threads, &open, &maps),
            _ => Some("ended"),
        }
    }

    /// Its anonymous memory in bytes, if it has not ended.
    fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(self.directory()?.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// Forks the interpreter into a sandbox: `process` is its runner. The result has to be placed.
    ///
    /// # Errors
    /// The cause. The template can't be used anymore.
    pub(super) async fn fork(
        &mut self,
        user: (u32, u32),
        process: BorrowedFd<'_>,
    ) -> Result<Arriving, ForkError> {
        self.forks += 1;
        self.request(user, Some(process)).await
    }

    /// Makes a copy that becomes a template, too.
    ///
    /// # Errors
    /// The cause.
    pub(super) async fn copy(&mut self) -> Result<Copy, ForkError> {
        let arriving = self.request((FOR_TEMPLATE, FOR_TEMPLATE), None).await?;
        let (image, tasks) = (Arc::clone(&self.image), self.tasks.clone());
        let log = self.log.try_clone().map_err(ForkError::Lost)?;
        let settled = tokio::time::timeout(FORK_TIMEOUT, arriving.settle()).await;
        let settled = settled.unwrap_or_else(|_| Err(io::Error::other("it did not begin")));
        let (socket, process) = settled.map_err(ForkError::Lost)?;
        Ok(Copy { socket, log, process: Arc::new(process), image, tasks })
    }

    async fn request(
        &mut self,
        user: (u32, u32),
        process: Option<BorrowedFd<'_>>,
    ) -> Result<Arriving, ForkError> {
        if self.owes_answer {
            // The last request was canceled before its answer.
            self.answer().await.map_err(ForkError::NotForked)?;
        }
        let (arriving, theirs) = Arriving::new().map_err(ForkError::NotForked)?;
        let request = [user.0.to_ne_bytes(), user.1.to_ne_bytes()].concat();
        let process = process.unwrap_or(theirs.as_fd());
        let sent = self.send(&request, &[process, theirs.as_fd()]).await;
        drop(theirs);
        sent.map_err(ForkError::NotForked)?;
        self.owes_answer = true;
        let answer = self.answer().await.map_err(ForkError::Lost)?;
        let [step, errno] = [0, 4].map(|at| {
            u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]])
        });
        let step = match step {
            0 => return Ok(arriving),
            step => STEPS.get(step as usize - 1).unwrap_or(&"do what it was asked"),
        };
        let error = io::Error::from_raw_os_error(errno as i32);
        Err(ForkError::NotForked(io::Error::other(format!("it could not {step}: {error}"))))
    }

    /// Waits for the answer to a request.
    async fn answer(&mut self) -> io::Result<[u8; 8]> {
        let mut answer = [0; 8];
        let received = tokio::time::timeout(FORK_TIMEOUT, self.receive(&mut answer)).await;
        match received
            .map_err(|_| io::Error::other(format!("it did not fork within {FORK_TIMEOUT:?}")))??
        {
            8 => {
                self.owes_answer = false;
                Ok(answer)
            }
            _ => Err(io::Error::other("it has ended")),
        }
    }

    async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REQUEST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("the descriptors don't fit into a message"));
        }
        let parts = [io::IoSlice::new(bytes)];
        let send = || Ok(sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?);
        self.socket.when(Interest::WRITABLE, send).await.map(|_| ())
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.socket().recv(buffer).await
    }

    /// The last line that it printed.
    fn printed(&self) -> Option<String> {
        let mut said = vec![0; 4096];
        let length = rustix::io::read(&self.log, &mut said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[..length]);
        said.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }
}

/// A copy of a template, which imports what it needs now. It ends if its socket is closed.
pub(super) struct Copy {
    socket: PacketSocket,
    log: OwnedFd,
    process: Arc<OwnedFd>,
    image: Arc<Held>,
    tasks: TaskTracker,
}

/// A fork that has entered a sandbox, is not in its control groups yet, and waits for that.
///
/// Nothing by which groups can be joined is ever in a template: it holds code of an image. The fork says that it is there, and
/// the kernel vouches for its number.
pub(super) struct Arriving(PacketSocket);

impl Arriving {
    /// Also returns the end for the fork.
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = PacketSocket::pair()?;
        sockopt::set_socket_passcred(&ours, true)?;
        Ok((Self(ours), theirs))
    }

    /// Moves it into the groups of its sandbox, and lets it go on. `word` says whether a program waits for it.
    ///
    /// # Errors
    /// When it has ended, or does not report in time.
    pub(super) async fn place(self, cgroup: Option<Cgroup>, word: u8) -> Result<(), ForkError> {
        let placed = tokio::time::timeout(FORK_TIMEOUT, self.try_place(cgroup, word)).await;
        let placed = placed.unwrap_or_else(|_| {
            Err(io::Error::other(format!("it was not in the sandbox within {FORK_TIMEOUT:?}")))
        });
        placed.map_err(ForkError::Lost)
    }

    /// Lets it become a template. Returns the socket for its requests, and the process.
    async fn settle(self) -> io::Result<(PacketSocket, OwnedFd)> {
        let process = pidfd_open(self.sender().await?, PidfdFlags::empty())?;
        self.0.socket().send(&[AWAITED]).await?;
        Ok((self.0, process))
    }

    async fn try_place(self, cgroup: Option<Cgroup>, word: u8) -> io::Result<()> {
        let pid = self.sender().await?;
        if let Some(cgroup) = cgroup {
            // The kernel may take some milliseconds for it.
            let taken = tokio::task::spawn_blocking(move || cgroup.take_in(pid)).await;
            taken.map_err(io::Error::other)??;
        }
        self.0.socket().send(&[word]).await.map(|_| ())
    }

    /// Its process ID here.
    async fn sender(&self) -> io::Result<Pid> {
        let receive = || {
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut word = [0; 1];
            let parts = &mut [io::IoSliceMut::new(&mut word)];
            let received = recvmsg(&self.0, parts, &mut control, RecvFlags::empty())?;
            let sender = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
                _ => None,
            });
            match (received.bytes, sender) {
                (1, Some(pid)) => Ok(pid),
                _ => Err(io::Error::other("it ended in the sandbox")),
            }
        };
        self.0.when(Interest::READABLE, receive).await
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        end(&self.tasks, Arc::clone(&self.process), self.cgroup.take());
    }
}

/// The resource that forks of a process would share, given its threads, its open descriptors and its mappings as `/proc` has them.
fn shared(threads: &[String], open: &[String], maps: &str) -> Option<&'static str> {
    const STREAMS: [&str; 3] = ["0", "1", "2"];
    // The rights are the second word of a line.
    let is_written = |line: &str| {
        let rights = line.split(' ').nth(1).unwrap_or_default();
        rights.ends_with('s') && rights.contains('w')
    };
    if threads.len() > 1 {
        Some("has threads")
    } else if !open.iter().all(|number| STREAMS.contains(&number.as_str())) {
        Some("has open files")
    } else {
        maps.lines().any(is_written).then_some("has writable shared memory")
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

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: &str = "00400000-00401000 r-xp 00000000 00:1f 12 /usr/bin/python3\n\
        7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n\
        7f0000001000-7f0000002000 r--s 00000000 00:1f 14 /usr/lib/gconv-modules.cache\n";
    const SHARED: &str = "7f0000002000-7f0000003000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n";

    #[test]
    fn shared_resources_of_a_template_are_found() {
        let numbers =
            |all: &[&str]| all.iter().map(|number| (*number).to_owned()).collect::<Vec<_>>();
        let (one, streams) = (numbers(&["7"]), numbers(&["0", "1", "2"]));
        assert_eq!(shared(&one, &streams, PRIVATE), None);
        assert_eq!(shared(&numbers(&["7", "8"]), &streams, PRIVATE), Some("has threads"));
        assert_eq!(shared(&one, &numbers(&["0", "1", "2", "5"]), PRIVATE), Some("has open files"));
        let maps = [PRIVATE, SHARED].concat();
        assert_eq!(shared(&one, &streams, &maps), Some("has writable shared memory"));
    }
}
