//! The protocol between the server and a launcher: JSON messages, one per packet, with descriptors attached.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroups::Version;
use super::host::Ids;
use super::plan::Plan;

/// Longest message. A sandbox's plan takes a tenth of it, to which an image may add nearly all of the rest:
/// its store limits variables and volumes.
const MAX_MESSAGE: usize = 64 * 1024;

/// Longest error in an answer. As JSON it may have six times as many bytes.
const MAX_ERROR: usize = 8 * 1024;

/// Number of descriptors with an answer: the runner's stream, its log, its process.
pub(super) const DESCRIPTORS: usize = 3;

/// The paths that a launcher needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LauncherPaths {
    /// The directory of all unpacked images.
    pub(super) images: PathBuf,
    /// The files that are mounted over every image: the runner, and others that all sandboxes share.
    pub(super) shared: PathBuf,
    /// The folder of all sets of packages, if there is one.
    pub(super) packages: Option<PathBuf>,
    /// Where control groups of version 2 are mounted, if sandboxes have those.
    pub(super) groups: Option<PathBuf>,
    /// The control groups whose changes the kernel should favour, if any.
    pub(super) favordynmods: Option<Version>,
    /// An image that is being built.
    pub(super) building: Option<Building>,
}

/// An image that is being built.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Building {
    /// Its root.
    pub(super) root: PathBuf,
    /// The users that its script runs as, and that own the files for it.
    pub(super) ids: Ids,
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LauncherRequest {
    /// Reply to [`LauncherReply::Entered`]: the users and groups are mapped.
    Mapped,
    /// The first request otherwise: the paths, with the socket of the binder if there are packages. The launcher answers when it is
    /// ready.
    Begin(LauncherPaths),
    /// Make a sandbox and start it.
    Create {
        /// Its name, which the answer repeats.
        name: String,
        /// Its plan.
        plan: Box<Plan>,
    },
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LauncherReply {
    /// The first message without root: the process has entered a user namespace, where it has no users yet.
    Entered,
    /// Reply to [`LauncherRequest::Begin`].
    Ready,
    /// Reply to [`LauncherRequest::Create`], with [`DESCRIPTORS`] descriptors on success.
    Created {
        /// The name in the request.
        name: String,
        /// The error.
        error: Option<String>,
    },
}

/// From the server to a binder, with a descriptor of the sandbox's process 1: give it a set of packages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BindRequest {
    /// The set's path below the folder of all sets.
    pub(super) set: PathBuf,
}

/// From a binder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BindReply {
    /// The error.
    pub(super) error: Option<String>,
}

impl LauncherReply {
    /// The answer that a sandbox was not made.
    pub(super) fn failed(name: String, mut error: String) -> Self {
        error.truncate(error.floor_char_boundary(MAX_ERROR));
        Self::Created { name, error: Some(error) }
    }
}

/// A message as it is sent.
pub(super) struct Packet(Vec<u8>);

impl Packet {
    /// Serializes a message.
    ///
    /// # Errors
    ///
    /// If it is too long. The other side would get only a part of it.
    pub(super) fn new(message: &impl Serialize) -> io::Result<Self> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE {
            let length = bytes.len();
            return Err(io::Error::other(format!(
                "it takes {length} bytes, and {MAX_MESSAGE} are possible"
            )));
        }
        Ok(Self(bytes))
    }

    /// Sends it.
    pub(super) fn send(&self, socket: impl AsFd, descriptors: &[OwnedFd]) -> io::Result<()> {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(io::Error::other("too many descriptors for a message"));
        }
        sendmsg(socket, &[IoSlice::new(&self.0)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Sends a message.
pub(super) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[OwnedFd],
) -> io::Result<()> {
    Packet::new(message)?.send(socket, descriptors)
}

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The connection can't be used anymore.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// A packet was no message, or was cut. The connection can still be used.
    #[error("a message can't be read: {message}")]
    Unreadable {
        /// The sandbox that it was about, if that much can be read.
        name: Option<String>,
        /// The problem.
        message: String,
    },
}

impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Socket(error) => error,
            unreadable => Self::other(unreadable),
        }
    }
}

/// Receives a message; `None` if the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> Result<Option<(T, Vec<OwnedFd>)>, ReceiveError> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        .map_err(io::Error::from)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let packet = &bytes[..received.bytes];
    let unreadable = |message| ReceiveError::Unreadable { name: name_in(packet), message };
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(unreadable(format!("it takes more than {MAX_MESSAGE} bytes")));
    }
    let message = serde_json::from_slice(packet);
    message.map(|message| Some((message, descriptors))).map_err(|e| unreadable(e.to_string()))
}

/// The sandbox of a packet that can't be read: the name is the first field of each message that has one, so it is there even if
/// the packet was cut.
fn name_in(packet: &[u8]) -> Option<String> {
    let starts = [r#"{"Create":{"name":"#, r#"{"Created":{"name":"#];
    let rest = starts.iter().find_map(|start| packet.strip_prefix(start.as_bytes()))?;
    serde_json::Deserializer::from_slice(rest).into_iter().next()?.ok()
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send as send_bytes, socketpair};

    use super::*;
    use crate::engine::embedded::plan::{Role, Root};

    fn create(host_name: &str) -> LauncherRequest {
        let plan = Plan {
            role: Role::Template,
            root: Root::Building,
            host_name: host_name.to_owned(),
            groups: None,
            memory: Vec::new(),
            files: Vec::new(),
            packages: None,
            program: Vec::new(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: "/".into(),
            user: (0, 0),
            capabilities: 0,
            limits: Vec::new(),
        };
        LauncherRequest::Create { name: "a \"name\"".to_owned(), plan: Box::new(plan) }
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let longest = "x".repeat(MAX_MESSAGE - serde_json::to_vec(&create("")).unwrap().len());
        assert!(Packet::new(&create(&longest)).is_ok());
        let refused = Packet::new(&create(&format!("{longest}x"))).err().unwrap().to_string();
        assert!(refused.contains("65537 bytes"), "{refused}");
        // Every character of an error may need six bytes.
        let answer = LauncherReply::failed("a name".to_owned(), "\u{1}".repeat(1 << 20));
        assert!(Packet::new(&answer).is_ok());
    }

    #[test]
    fn an_unreadable_packet_is_not_the_end_of_the_connection() {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None).unwrap();
        let long = serde_json::to_vec(&create(&"x".repeat(MAX_MESSAGE))).unwrap();
        let name = Some("a \"name\"");
        for (packet, whose, reason) in [
            (&long[..], name, "more than 65536 bytes"),
            (&long[..100], name, "EOF"),
            (&long[..25], None, "EOF"),
            (br#"{"Create":{"name":1}}"#, None, "invalid type"),
            (br#""Other""#, None, "unknown variant"),
            (b"\xff\0\x01", None, "expected value"),
        ] {
            send_bytes(&ours, packet, SendFlags::empty()).unwrap();
            let received = receive::<LauncherRequest>(&theirs);
            let Err(ReceiveError::Unreadable { name, message }) = received else {
                panic!("{received:?}")
            };
            assert_eq!(name.as_deref(), whose, "{message}");
            assert!(message.contains(reason), "{message}");
        }
        send(&ours, &create("x"), &[]).unwrap();
        let received = receive(&theirs).unwrap().unwrap().0;
        assert!(matches!(received, LauncherRequest::Create { plan, .. } if plan.host_name == "x"));
        drop(ours);
        assert!(receive::<LauncherRequest>(&theirs).unwrap().is_none());
    }
}
