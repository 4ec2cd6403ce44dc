//! The server's side of a binder, which belongs to a launcher and brings sets of packages into sandboxes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::Instant;

use super::protocol::{self, BindReply, BindRequest, ReceiveError};
use crate::engine::Call;
use crate::lock::lock;

/// The connection to a binder.
pub(super) struct BinderClient {
    /// As that to a launcher: it keeps messages apart.
    socket: UnixDatagram,
    /// Locked while a request is under way.
    turn: tokio::sync::Mutex<()>,
    /// When that was sent.
    since: Mutex<Option<Instant>>,
}

impl BinderClient {
    /// Also returns the end for the binder.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        let ours = std::os::unix::net::UnixDatagram::from(ours);
        ours.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(ours)?;
        Ok((Self { socket, turn: tokio::sync::Mutex::default(), since: Mutex::default() }, theirs))
    }

    /// Mounts a set, whose path is below the folder of all sets, in a sandbox with this process 1. The future must be driven to its
    /// end: the next request would get the answer.
    ///
    /// # Errors
    ///
    /// The binder's message, or that it has ended.
    pub(super) async fn bind(&self, set: &Path, process: &OwnedFd) -> Result<(), String> {
        let ended = |error: io::Error| format!("the process that brings packages ended: {error}");
        let process = process.try_clone().map_err(|error| error.to_string())?;
        let _turn = self.turn.lock().await;
        let request = BindRequest { set: set.to_owned() };
        let send = || protocol::send(&self.socket, &request, std::slice::from_ref(&process));
        *lock(&self.since) = Some(Instant::now());
        self.socket.async_io(Interest::WRITABLE, send).await.map_err(ended)?;
        let received = self.socket.async_io(Interest::READABLE, || {
            match protocol::receive::<BindReply>(&self.socket) {
                // Only the socket's own errors may be that nothing is there yet.
                Err(ReceiveError::Socket(error)) => Err(error),
                received => Ok(received),
            }
        });
        let received = received.await.map_err(ended)?;
        *lock(&self.since) = None;
        match received.map_err(|error| ended(error.into()))? {
            None => Err(ended(io::ErrorKind::UnexpectedEof.into())),
            Some((BindReply { error }, _)) => error.map_or(Ok(()), Err),
        }
    }

    /// Whether the binder is there and answers in time.
    pub(super) fn is_healthy(&self) -> bool {
        let is_late = lock(&self.since).is_some_and(|it| it.elapsed() > Call::Bind.deadline());
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let looked = poll(&mut fds, Some(&Timespec::default()));
        let is_over = PollFlags::HUP | PollFlags::ERR;
        !is_late && looked.is_ok() && !fds[0].revents().intersects(is_over)
    }
}
