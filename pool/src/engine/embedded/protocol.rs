//! The protocol between the server and a launcher: JSON messages, one per packet, with descriptors attached.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest message. A sandbox's specification takes a tenth of it.
const MAX_MESSAGE: usize = 64 * 1024;

/// Number of descriptors with an answer: the runner's stream, its log, its process.
pub(super) const DESCRIPTORS: usize = 3;

/// The paths that a launcher needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LauncherPaths {
    /// The directory of all unpacked images.
    pub(super) images: PathBuf,
    /// What is mounted over every image: the runner, and files that are the same in all sandboxes.
    pub(super) shared: PathBuf,
    /// Where control groups of version 2 are mounted, if sandboxes have those.
    pub(super) groups: Option<PathBuf>,
    /// The root in which an image is being built.
    pub(super) building: Option<PathBuf>,
    /// Where the devices of sandboxes come from.
    pub(super) devices: Devices,
}

/// Which device nodes sandboxes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Devices {
    /// Each has its own.
    Own,
    /// Those of the host, because only root can make others.
    Host,
}

/// What kind of sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A sandbox from an image.
    Image {
        /// The image's root in the launcher's view.
        image: PathBuf,
        /// The layer for what it writes to its root, if it may write there.
        layer: Option<Layer>,
    },
    /// A sandbox in which a trusted script builds an image.
    Build,
}

/// A writable layer over an image. It is in memory and counts against the sandbox's memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layer {
    /// Its size in bytes.
    pub(super) size: u64,
    /// Most files that it can hold.
    pub(super) inodes: u32,
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Reply to [`Answer::Entered`]: the users and groups are mapped.
    Mapped,
    /// The first request otherwise: the paths. The launcher answers when it is ready.
    Begin(LauncherPaths),
    /// Make a sandbox and start it.
    Create {
        /// Its name, which the answer repeats.
        name: String,
        /// Its OCI runtime specification.
        spec: Value,
        /// Its kind.
        kind: Kind,
        /// A control group for the sandbox that `libcontainer` does not create.
        group: Option<PathBuf>,
    },
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The first message without root: the process has entered a user namespace, where it has no users yet.
    Entered,
    /// Reply to [`Request::Begin`].
    Ready,
    /// Reply to [`Request::Create`], with [`DESCRIPTORS`] descriptors on success.
    Created {
        name: String,
        /// What went wrong.
        error: Option<String>,
    },
}

/// Sends a message.
pub(super) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[OwnedFd],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None` if the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
}
