//! The server's side of a launcher: starts the process, sends it requests, delivers its answers.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, Interest};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::task::TaskTracker;

use super::binder_client::BinderClient;
use super::launcher;
use super::packet_socket::PacketSocket;
use super::plan::Plan;
use super::protocol::{self, LauncherPaths, LauncherReply, LauncherRequest, Packet, ReceiveError};
use super::rootless::Grant;
use crate::engine::Call;
use crate::lock::lock;

/// Longest line of a launcher that is logged, in bytes.
const MAX_LINE: usize = 8 << 10;

/// Timeout for the last lines of a launcher that could not start.
const LAST_LINES: Duration = Duration::from_millis(200);

/// The server's descriptors of a new sandbox.
pub(super) struct SandboxHandles {
    /// The stream to the runner.
    pub(super) stream: OwnedFd,
    /// The runner's log.
    pub(super) log: OwnedFd,
    /// Process 1.
    pub(super) process: OwnedFd,
}

/// A running launcher. Dropping it ends the process and every sandbox that it made.
pub(super) struct LauncherClient {
    socket: Arc<PacketSocket>,
    waiting: Arc<Mutex<PendingRequests>>,
    /// Mounts sets of packages in its sandboxes, if there are any.
    binder: Option<BinderClient>,
    reader: tokio::task::AbortHandle,
    /// Killed when it is dropped, and reaped by the runtime.
    _process: Child,
}

/// The pending requests, by the name of the sandbox; `None` when there will be no more answers.
type PendingRequests = Option<HashMap<String, PendingRequest>>;

/// A request that waits for its answer.
struct PendingRequest {
    since: Instant,
    answer: oneshot::Sender<Result<SandboxHandles, CreateError>>,
}

/// Why a launcher has not made a sandbox.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateError {
    /// The launcher's message.
    #[error("{0}")]
    Failed(String),
    /// The request does not fit into a packet.
    #[error(
        "the sandbox's specification is too long, {0}: use an image with fewer variables and volumes"
    )]
    TooLong(#[source] io::Error),
    /// The launcher has ended before the request.
    #[error("the process that makes sandboxes has ended: {0}")]
    NotSent(#[source] io::Error),
    /// The launcher has ended before its answer.
    #[error("the process that makes sandboxes has ended")]
    Ended,
    /// The answer has no descriptors.
    #[error("the launcher sent no descriptors")]
    NoDescriptors,
    /// The sandbox was not made in time, and its processes could not be killed.
    #[error("{0}")]
    NotKilled(#[source] io::Error),
}

impl LauncherClient {
    /// Starts the process. Must be called inside a Tokio runtime.
    pub(super) async fn start(
        program: &Path,
        paths: LauncherPaths,
        grant: Option<&Grant>,
        tasks: &TaskTracker,
    ) -> io::Result<Self> {
        let (ours, theirs) = PacketSocket::pair()?;
        let mut process = Command::new(program)
            .arg(launcher::SUBCOMMAND)
            .args(grant.map(|_| launcher::ROOTLESS))
            // The server's variables, which may hold secrets, are not for the launcher.
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            // Its lines are lines of the server's log, in its format.
            .stderr(Stdio::piped())
            // Signals for the server's process group, such as Ctrl-C, are not for the launcher.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
        let lines = process.stderr.take().map(|said| tasks.spawn(pass_on_lines(said)));
        let started = Self::begin(process, ours, paths, grant, tasks).await;
        if started.is_err()
            && let Some(lines) = lines
        {
            // The process is gone by now, and its last lines say why.
            let _ = tokio::time::timeout(LAST_LINES, lines).await;
        }
        started
    }

    async fn begin(
        process: Child,
        socket: PacketSocket,
        paths: LauncherPaths,
        grant: Option<&Grant>,
        tasks: &TaskTracker,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        if let Some(grant) = grant {
            map_users(grant, &socket, process.id()).await?;
        }
        let (binder, theirs) = match paths.packages {
            Some(_) => BinderClient::new().map(|(binder, theirs)| (Some(binder), vec![theirs]))?,
            None => (None, Vec::new()),
        };
        socket.send(&LauncherRequest::Begin(paths), &theirs).await?;
        drop(theirs);
        match socket.receive().await? {
            Some((LauncherReply::Ready, _)) => {}
            _ => return Err(io::Error::other("the launcher ended before it was ready")),
        }
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tasks.spawn(pass_on(Arc::clone(&socket), Arc::clone(&waiting)));
        Ok(Self { socket, waiting, binder, reader: reader.abort_handle(), _process: process })
    }

    /// Whether the process runs and answers in time.
    pub(super) fn is_healthy(&self) -> bool {
        let waiting = lock(&self.waiting);
        let is_late = |pending: &PendingRequest| pending.since.elapsed() > Call::Create.deadline();
        waiting.as_ref().is_some_and(|waiting| !waiting.values().any(is_late))
            && self.binder.as_ref().is_none_or(BinderClient::is_healthy)
    }

    /// The connection that mounts sets of packages in its sandboxes, if there were any when it was started.
    pub(super) fn binder(&self) -> Option<&BinderClient> {
        self.binder.as_ref()
    }

    /// Whether the process has ended. Unlike [`Self::is_healthy`] this asks the kernel.
    pub(super) fn has_ended(&self) -> bool {
        self.socket.is_closed()
    }

    /// Number of requested sandboxes that it has not made yet.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).as_ref().map_or(usize::MAX, HashMap::len)
    }

    /// Makes a sandbox. If the future is dropped the sandbox may still be made; then its stream is closed, and
    /// its runner ends.
    ///
    /// # Errors
    ///
    /// The launcher's message, or that it has ended.
    pub(super) async fn create(
        &self,
        name: &str,
        plan: Plan,
    ) -> Result<SandboxHandles, CreateError> {
        let request = LauncherRequest::Create { name: name.to_owned(), plan: Box::new(plan) };
        let packet = Packet::new(&request).map_err(CreateError::TooLong)?;
        let (sender, answer) = oneshot::channel();
        let pending = PendingRequest { since: Instant::now(), answer: sender };
        self.ask(name, pending, &packet).await.map_err(CreateError::NotSent)?;
        answer.await.unwrap_or(Err(CreateError::Ended))
    }

    /// Sends a request. It is pending if and only if it was sent, because a launcher whose requests get no answer is ended,
    /// with all its sandboxes.
    async fn ask(&self, name: &str, pending: PendingRequest, packet: &Packet) -> io::Result<()> {
        loop {
            self.socket.socket().writable().await?;
            let mut waiting = lock(&self.waiting);
            let waiting = waiting.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            let send = || packet.send(&*self.socket, &[]);
            match self.socket.socket().try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    // The task that delivers the answer waits for the lock.
                    return sent.map(|()| drop(waiting.insert(name.to_owned(), pending)));
                }
            }
        }
    }
}

impl Drop for LauncherClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Maps the users of a launcher that has entered a user namespace.
async fn map_users(grant: &Grant, socket: &PacketSocket, process: Option<u32>) -> io::Result<()> {
    let (Some((LauncherReply::Entered, _)), Some(process)) = (socket.receive().await?, process)
    else {
        return Err(io::Error::other("the launcher could not enter a user namespace"));
    };
    let grant = grant.clone();
    tokio::task::spawn_blocking(move || grant.map_ids(process))
        .await
        .map_err(io::Error::other)??;
    socket.send(&LauncherRequest::Mapped, &[]).await
}

/// Logs the lines of the launcher, until it and its binder have ended. No sandbox has that stream.
async fn pass_on_lines(said: impl AsyncRead + Unpin) {
    let mut lines = FramedRead::new(said, LinesCodec::new_with_max_length(MAX_LINE));
    loop {
        match lines.next().await {
            Some(Ok(line)) => tracing::error!("the launcher said: {line}"),
            // Then there is an end once, and after it the next line.
            Some(Err(LinesCodecError::MaxLineLengthExceeded)) => {
                tracing::error!("the launcher said a line of more than {MAX_LINE} bytes");
                lines.next().await;
            }
            Some(Err(LinesCodecError::Io(error))) => {
                tracing::error!(%error, "the launcher's log can't be read anymore");
                return;
            }
            None => return,
        }
    }
}

/// Delivers answers until there are no more.
async fn pass_on(socket: Arc<PacketSocket>, waiting: Arc<Mutex<PendingRequests>>) {
    loop {
        let (name, error, descriptors) = match socket.receive().await {
            Ok(Some((LauncherReply::Created { name, error }, descriptors))) => {
                (name, error, descriptors)
            }
            Err(ReceiveError::Unreadable { name: Some(name), message }) => {
                (name, Some(message), Vec::new())
            }
            _ => break,
        };
        let created = match (error, <[OwnedFd; protocol::DESCRIPTORS]>::try_from(descriptors)) {
            (None, Ok([stream, log, process])) => Ok(SandboxHandles { stream, log, process }),
            (Some(message), _) => Err(CreateError::Failed(message)),
            (None, Err(_)) => Err(CreateError::NoDescriptors),
        };
        let pending = lock(&waiting).as_mut().and_then(|waiting| waiting.remove(&name));
        if let Some(pending) = pending {
            // If the receiver is gone, this drops the sandbox's descriptors.
            let _ = pending.answer.send(created);
        }
    }
    *lock(&waiting) = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_line_of_a_launcher_does_not_hide_the_next_ones() {
        let said = [vec![b'x'; MAX_LINE + 1000], b"\nnext\nlast".to_vec()].concat();
        let mut said = &said[..];
        pass_on_lines(&mut said).await;
        assert!(said.is_empty());
    }
}
