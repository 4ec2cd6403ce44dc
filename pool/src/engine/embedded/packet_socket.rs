//! The server's end of a connection to a launcher, a binder or a fork, which keeps messages apart.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::protocol::{self, Packet, ReceiveError};

/// A `SOCK_SEQPACKET` socket, which reports when the other side is gone. The runtime has no type for that kind; this one
/// works with it.
pub(super) struct PacketSocket(UnixDatagram);

impl PacketSocket {
    /// Also returns the other end, for another process. Must be called inside a Tokio runtime.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    /// Takes a socket of that kind. Must be called inside a Tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        UnixDatagram::from_std(socket).map(Self)
    }

    /// Sends a message.
    pub(super) async fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[OwnedFd],
    ) -> io::Result<()> {
        let packet = Packet::new(message)?;
        self.when(Interest::WRITABLE, || packet.send(self, descriptors)).await
    }

    /// Receives a message; `None` if the other side is gone.
    pub(super) async fn receive<T: DeserializeOwned>(
        &self,
    ) -> Result<Option<(T, Vec<OwnedFd>)>, ReceiveError> {
        let received = self.when(Interest::READABLE, || match protocol::receive(self) {
            // Only the socket's own errors can be that nothing is there yet.
            Err(ReceiveError::Socket(error)) => Err(error),
            received => Ok(received),
        });
        received.await?
    }

    /// Calls `act` when the socket is ready, until it does not say that it would block.
    pub(super) async fn when<T>(
        &self,
        interest: Interest,
        act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.async_io(interest, act).await
    }

    /// The socket, for other messages.
    pub(super) fn socket(&self) -> &UnixDatagram {
        &self.0
    }

    /// Whether the other side is gone. This asks the kernel.
    pub(super) fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
