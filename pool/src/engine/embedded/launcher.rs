//! The server's side of a launcher: starts the process, asks it for sandboxes, passes answers on.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::launch;
use super::protocol::{self, Answer, Kind, Places, Request};
use super::rootless::Grant;
use crate::engine::Call;
use crate::lock::lock;

/// What the server holds of a new sandbox.
pub(super) struct Created {
    /// The stream to the runner.
    pub(super) stream: OwnedFd,
    /// What the runner says besides.
    pub(super) log: OwnedFd,
    /// Process 1.
    pub(super) process: OwnedFd,
}

/// A launcher that runs. Dropping it ends the process and every sandbox that it made.
pub(super) struct Launcher {
    /// It keeps the bounds of messages and tells of the other side's end; the runtime has no type of its
    /// own for that kind, and this one asks for none.
    socket: Arc<UnixDatagram>,
    waiting: Arc<Mutex<Waiting>>,
    reader: tokio::task::AbortHandle,
    /// Killed when it is dropped, and reaped by the runtime.
    _process: Child,
}

/// Who waits for an answer, by the name of the sandbox; `None` when there will be no answers any more.
type Waiting = Option<HashMap<String, Waiter>>;

/// Somebody who waits for an answer.
struct Waiter {
    since: Instant,
    answer: oneshot::Sender<Result<Created, String>>,
}

impl Launcher {
    /// Starts the process. Must be called inside a Tokio runtime.
    pub(super) async fn start(
        program: &Path,
        places: Places,
        grant: Option<&Grant>,
        tasks: &TaskTracker,
    ) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        let ours = std::os::unix::net::UnixDatagram::from(ours);
        ours.set_nonblocking(true)?;
        let process = Command::new(program)
            .arg(launch::SUBCOMMAND)
            .args(grant.map(|_| launch::ROOTLESS))
            // Nothing that the server was told is for who makes sandboxes.
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            // A signal for the server's group, such as that of a key, is not for who makes sandboxes.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
        let socket = Arc::new(UnixDatagram::from_std(ours)?);
        if let Some(grant) = grant {
            give(grant, &socket, process.id()).await?;
        }
        send(&socket, &Request::Begin(places)).await?;
        match receive(&socket).await? {
            Some((Answer::Ready, _)) => {}
            _ => return Err(io::Error::other("the launcher ended before it was ready")),
        }
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tasks.spawn(pass_on(Arc::clone(&socket), Arc::clone(&waiting)));
        Ok(Self { socket, waiting, reader: reader.abort_handle(), _process: process })
    }

    /// Whether it still runs, and answers in time.
    pub(super) fn is_well(&self) -> bool {
        let waiting = lock(&self.waiting);
        let is_late = |waiter: &Waiter| waiter.since.elapsed() > Call::Create.deadline();
        waiting.as_ref().is_some_and(|waiting| !waiting.values().any(is_late))
    }

    /// Whether the process is gone. Unlike [`Self::is_well`] it asks the kernel.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&*self.socket, PollFlags::empty())];
        let is_over = PollFlags::HUP | PollFlags::ERR;
        let looked = poll(&mut fds, Some(&Timespec::default()));
        looked.is_err() || fds[0].revents().intersects(is_over)
    }

    /// How many sandboxes it was asked for and has not made yet.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).as_ref().map_or(usize::MAX, HashMap::len)
    }

    /// Makes a sandbox. If the future is dropped the sandbox may still be made; its stream is closed then,
    /// and the runner ends by itself.
    ///
    /// # Errors
    ///
    /// What the launcher said, or that it is gone.
    pub(super) async fn create(
        &self,
        name: &str,
        spec: Value,
        kind: Kind,
        group: Option<PathBuf>,
    ) -> Result<Created, String> {
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { since: Instant::now(), answer: sender };
        match lock(&self.waiting).as_mut() {
            Some(waiting) => waiting.insert(name.to_owned(), waiter),
            None => return Err(GONE.to_owned()),
        };
        let request = Request::Create { name: name.to_owned(), spec, kind, group };
        send(&self.socket, &request).await.map_err(|error| format!("{GONE}: {error}"))?;
        answer.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Gives a launcher, which has entered a user namespace, its users.
async fn give(grant: &Grant, socket: &UnixDatagram, process: Option<u32>) -> io::Result<()> {
    let (Some((Answer::Entered, _)), Some(process)) = (receive(socket).await?, process) else {
        return Err(io::Error::other("the launcher could not enter a user namespace"));
    };
    let grant = grant.clone();
    tokio::task::spawn_blocking(move || grant.give(process)).await.map_err(io::Error::other)??;
    send(socket, &Request::Mapped).await
}

const GONE: &str = "the process that makes sandboxes has ended";

/// Passes answers on until there are none any more.
async fn pass_on(socket: Arc<UnixDatagram>, waiting: Arc<Mutex<Waiting>>) {
    while let Ok(Some((answer, descriptors))) = receive(&socket).await {
        let Answer::Created { name, error } = answer else { break };
        let created = match (error, <[OwnedFd; protocol::DESCRIPTORS]>::try_from(descriptors)) {
            (None, Ok([stream, log, process])) => Ok(Created { stream, log, process }),
            (Some(error), _) => Err(error),
            (None, Err(_)) => Err("the launcher sent no descriptors".to_owned()),
        };
        let waiter = lock(&waiting).as_mut().and_then(|waiting| waiting.remove(&name));
        if let Some(waiter) = waiter {
            // Who has gone lets go of the sandbox.
            let _ = waiter.answer.send(created);
        }
    }
    *lock(&waiting) = None;
}

async fn send(socket: &UnixDatagram, request: &Request) -> io::Result<()> {
    socket.async_io(Interest::WRITABLE, || protocol::send(socket, request, &[])).await
}

async fn receive(socket: &UnixDatagram) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    socket.async_io(Interest::READABLE, || protocol::receive(socket)).await
}
