//! The server's side of a binder, which belongs to a launcher and brings sets of packages into sandboxes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tokio::time::Instant;

use super::packet_socket::PacketSocket;
use super::protocol::{BindReply, BindRequest};
use crate::engine::Call;
use crate::lock::lock;

/// The connection to a binder.
pub(super) struct BinderClient {
    socket: PacketSocket,
    /// Locked while a request is under way.
    turn: tokio::sync::Mutex<()>,
    /// When it was sent.
    since: Mutex<Option<Instant>>,
}

/// Why a sandbox was not given a set of packages.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindError {
    /// The launcher was started without the folder of all sets.
    #[error("{} was not there when its launcher was started", .0.display())]
    NoFolder(PathBuf),
    /// The binder has ended.
    #[error("the process that brings packages ended: {0}")]
    Ended(#[source] io::Error),
    /// The binder's message.
    #[error("{0}")]
    Failed(String),
}

impl BinderClient {
    /// A connection, with the end for the binder.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = PacketSocket::pair()?;
        Ok((Self { socket, turn: tokio::sync::Mutex::default(), since: Mutex::default() }, theirs))
    }

    /// Mounts a set, whose path is below the folder of all sets, in a sandbox with this process 1. The future must run to its
    /// end: otherwise the next request would get the answer.
    ///
    /// # Errors
    ///
    /// The binder's message, or that it has ended.
    pub(super) async fn bind(&self, set: &Path, process: &OwnedFd) -> Result<(), BindError> {
        let process = process.try_clone().map_err(BindError::Ended)?;
        let _turn = self.turn.lock().await;
        let request = BindRequest { set: set.to_owned() };
        *lock(&self.since) = Some(Instant::now());
        let sent = self.socket.send(&request, std::slice::from_ref(&process)).await;
        sent.map_err(BindError::Ended)?;
        let received = self.socket.receive().await;
        *lock(&self.since) = None;
        match received.map_err(|error| BindError::Ended(error.into()))? {
            None => Err(BindError::Ended(io::ErrorKind::UnexpectedEof.into())),
            Some((BindReply { error }, _)) => {
                error.map_or(Ok(()), |error| Err(BindError::Failed(error)))
            }
        }
    }

    /// Whether the binder is there and answers in time.
    pub(super) fn is_healthy(&self) -> bool {
        let is_late = lock(&self.since).is_some_and(|it| it.elapsed() > Call::Bind.deadline());
        !is_late && !self.socket.is_closed()
    }
}
