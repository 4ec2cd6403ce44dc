//! What the server and a launcher say to each other: one message a packet, in JSON, with descriptors
//! beside it.

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
const LONGEST: usize = 64 * 1024;

/// Descriptors with a message: the runner's stream, its log, its process.
pub(super) const DESCRIPTORS: usize = 3;

/// Where the launcher finds what the server wants to be seen inside sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Places {
    /// The directory of all unpacked images.
    pub(super) images: PathBuf,
    /// What lies over every image: the runner, and files that are the same in all sandboxes.
    pub(super) shared: PathBuf,
    /// Where control groups of version 2 are mounted, if sandboxes have those.
    pub(super) groups: Option<PathBuf>,
    /// The root in which an image is being built.
    pub(super) building: Option<PathBuf>,
    /// Where the devices of sandboxes come from.
    pub(super) devices: Devices,
}

/// LabelFilter device nodes sandboxes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Devices {
    /// Each its own.
    Own,
    /// Those of the host, as nobody but root can make others.
    Host,
}

/// What kind of sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// One of an image.
    Image {
        /// The image's root in the launcher's view.
        image: PathBuf,
        /// Where it writes what it writes to its root, if it may.
        layer: Option<Layer>,
    },
    /// One in which an image is built, by a script that is not hostile.
    Build,
}

/// Where a sandbox writes that may write anywhere: in memory, as far as its own limit of it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layer {
    /// Bytes that it takes.
    pub(super) size: u64,
    /// Files that it takes.
    pub(super) inodes: u32,
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// To [`Answer::Entered`]: the process has its users and groups.
    Mapped,
    /// The first, otherwise: where everything is. It is answered when the launcher is ready.
    Begin(Places),
    /// Make a sandbox and start it.
    Create {
        /// Its name, and that of its answer.
        name: String,
        /// Its OCI runtime specification.
        spec: Value,
        /// Of what kind it is.
        kind: Kind,
        /// A control group that it shall be in besides.
        group: Option<PathBuf>,
    },
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Comes first, without root: the process has entered a user namespace, in which it is nobody yet.
    Entered,
    /// To [`Request::Begin`].
    Ready,
    /// To [`Request::Create`], with [`DESCRIPTORS`] if it went well.
    Created {
        name: String,
        /// What went wrong, in the words of who noticed.
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
    let mut bytes = vec![0; LONGEST];
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
