//! Interpreters that the engine forks into the sandbox. Each connects to the runner and passes the other ends of its
//! streams, and a channel.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use isolator_runner::fork::{ADDRESS, PASSED_DESCRIPTORS};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recvmsg, socket_with, sockopt,
};

use crate::poll;
use crate::process::Process;

/// How long one may take. It was forked before the server's message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A listening socket for forks. It is closed before a program starts.
pub(crate) struct Forks(OwnedFd);

impl Forks {
    /// Listens at an address in the sandbox's network namespace.
    pub(crate) fn listen() -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(ADDRESS)?)?;
        listen(&socket, 2)?;
        Ok(Self(socket))
    }

    /// Takes the next one.
    pub(crate) fn accept(&self) -> io::Result<(Process, UnixStream)> {
        wait(&self.0)?;
        let connection = accept_with(&self.0, SocketFlags::CLOEXEC)?;
        let pid = sockopt::socket_peercred(&connection)?.pid;
        wait(&connection)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0; 1];
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(&connection, &mut [IoSliceMut::new(&mut word)], &mut control, flags)?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let passed: Vec<OwnedFd> = rights.flatten().collect();
        let [stdin, stdout, stderr, channel] = <[OwnedFd; PASSED_DESCRIPTORS]>::try_from(passed)
            .map_err(|_| io::Error::other("it passed no streams"))?;
        Ok((Process::adopt(pid, stdin, stdout, stderr)?, channel.into()))
    }
}

fn wait(socket: &OwnedFd) -> io::Result<()> {
    if poll::wait(&mut [poll::readable(socket.as_fd())], TIMEOUT)? {
        Ok(())
    } else {
        Err(io::Error::other("it did not connect"))
    }
}
