//! The channel to a kernel: messages in both directions.
//!
//! A message is one byte of kind, four bytes of length (big endian), and its payload. `runner/session/kernel.py` and `kernel.cjs`
//! speak the other side of it:
//!
//! ```text
//! kernel                        runner
//!                           ◀──  H        Node.js only: the channel from now on, as a descriptor
//!   r: version              ──▶           cells can come
//!   l                       ──▶           Python only: what cells need is loaded, unless that was prepared
//!                           ◀──  C: number, flags, code; with three descriptors for Python
//!   s: checkpoint or why not ─▶           from the process that will run the cell; the reason is a code
//!                           ◀──  G        run the code now; the server has been told that the cell has started
//!                           ◀──  P: does that cell follow at once?  make its checkpoint now; with one descriptor
//!   p: checkpoint or why not ─▶           from the process that will run the cell
//!   d: forms of a thing     ──▶           what the cell shows; between cells, what threads and timers of earlier ones do
//!   e: how, exit code       ──▶           the end of the cell: everything that it printed is in its pipes
//!                           ◀──  Q: text  which names may the word at its end become?
//!   q: where, names         ──▶           between cells
//!                           ◀──  R        the process that ran the cell is gone: this is the session again
//! ```
//!
//! The kernel's process belongs to the program. Its messages have limits, and nothing depends on them except what its client reads
//! about its cells.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use isolator_runner::wire::session::{MAX_MEDIA_TYPE, MAX_NAME, MAX_NAMES};
use isolator_runner::wire::{Completed, NoCheckpoint};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use rustix::process::Pid;

use crate::poll;

/// Longest message that is taken. Longer ones are skipped.
const MAX_MESSAGE: usize = 8 << 20;

/// Bytes of a message before its payload.
const HEADER: usize = 5;

/// Read at once.
const CHUNK: usize = 64 * 1024;

/// A message of a kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It can take cells; the version of its interpreter.
    Ready(String),
    /// It has loaded what cells need.
    Loaded,
    /// The code of a cell can run. The error says why there is no checkpoint.
    Started(Result<(), NoCheckpoint>),
    /// The next cell has its checkpoint. The error says why it has none yet.
    Prepared(Result<(), NoCheckpoint>),
    /// The cell shows something, in one or more forms.
    Shown { is_result: bool, forms: Vec<(String, Vec<u8>)> },
    /// The cell shows something that is too long to be taken.
    TooLong,
    /// The cell has ended.
    Ended { end: u8, code: i32 },
    /// The names for a text. There are none if the kernel gave more or others than it may.
    Completed(Completed),
}

/// The runner's end of a channel.
pub(super) struct Channel {
    socket: OwnedFd,
    received: Vec<u8>,
    /// Bytes of `received` that were taken.
    taken: usize,
    /// Bytes of a message that is too long, which are still to come.
    skipped: usize,
    /// Answers about names that are no longer awaited, and are dropped when they come.
    late: u32,
    /// The process that has sent last.
    pub(super) sender: Option<Pid>,
    /// Whether the other end is closed.
    pub(super) is_closed: bool,
}

impl Channel {
    /// Takes the runner's end. From now on the operating system names the sender of each message.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self {
            socket,
            received: Vec::new(),
            taken: 0,
            skipped: 0,
            late: 0,
            sender: None,
            is_closed: false,
        })
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message, with descriptors.
    ///
    /// # Errors
    ///
    /// When the other end is closed, or has not read it after `timeout`.
    pub(super) fn send(
        &self,
        kind: u8,
        payload: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> io::Result<()> {
        let until = Instant::now() + timeout;
        let length: usize = payload.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).map_err(io::Error::other)?.to_be_bytes();
        let mut message = vec![kind];
        message.extend_from_slice(&length);
        payload.iter().for_each(|part| message.extend_from_slice(part));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let mut rest = &message[..];
        while !rest.is_empty() {
            match sendmsg(&self.socket, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    control.clear();
                    rest = &rest[count..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if !poll::wait(&mut [PollFd::new(&self.socket, PollFlags::OUT)], left)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next message, if one has come. Never waits.
    ///
    /// # Errors
    ///
    /// When the kernel breaks the protocol.
    pub(super) fn next(&mut self) -> io::Result<Option<Said>> {
        let mut all = usize::MAX;
        self.next_within(&mut all)
    }

    /// The same, for a caller that has other things to do: the channel is read at most `reads` times, because messages may come without
    /// end. Messages that were read are returned in any case; the others can still be polled.
    ///
    /// # Errors
    ///
    /// When the kernel breaks the protocol.
    pub(super) fn next_within(&mut self, reads: &mut usize) -> io::Result<Option<Said>> {
        loop {
            match self.parse()? {
                Some(Said::Completed(_)) if self.late > 0 => {
                    self.late -= 1;
                    continue;
                }
                Some(said) => return Ok(Some(said)),
                None => {}
            }
            if self.is_closed || *reads == 0 || !self.receive()? {
                return Ok(None);
            }
            *reads -= 1;
        }
    }

    /// Notes that the answer about names is no longer awaited.
    pub(super) const fn give_up_names(&mut self) {
        self.late = self.late.saturating_add(1);
    }

    /// Number of answers about names that are still to come and that are dropped then.
    pub(super) const fn late_names(&self) -> u32 {
        self.late
    }

    /// Whether a message has come that was read together with the one before. The descriptor says nothing of it.
    pub(super) fn has_message(&self) -> bool {
        let left = &self.received[self.taken..];
        left.split_first_chunk::<HEADER>().is_some_and(|([_, length @ ..], rest)| {
            let length = u32::from_be_bytes(*length) as usize;
            length > MAX_MESSAGE || rest.len() >= length
        })
    }

    /// Reads once. Returns whether there was something.
    fn receive(&mut self) -> io::Result<bool> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; CHUNK];
        let got = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let count = match got {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        // Descriptors that it sends are closed here.
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmCredentials(sender) = message {
                self.sender = Some(sender.pid);
            }
        }
        self.is_closed = count == 0;
        self.received.drain(..std::mem::take(&mut self.taken));
        let skipped = self.skipped.min(count);
        self.skipped -= skipped;
        self.received.extend_from_slice(&buffer[skipped..count]);
        Ok(count > 0)
    }

    fn parse(&mut self) -> io::Result<Option<Said>> {
        let left = &self.received[self.taken..];
        let Some((header, rest)) = left.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [kind, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE {
            self.skipped = length.saturating_sub(rest.len());
            self.taken += HEADER + length.min(rest.len());
            return Ok(Some(Said::TooLong));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let said =
            said(kind, payload).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        self.taken += HEADER + length;
        Ok(Some(said))
    }
}

fn said(kind: u8, payload: &[u8]) -> Option<Said> {
    Some(match kind {
        b'r' => Said::Ready(String::from_utf8_lossy(payload).chars().take(200).collect()),
        b'l' => Said::Loaded,
        b's' | b'p' => {
            let [code] = payload else { return None };
            let checkpoint = match code.checked_sub(1) {
                None => Ok(()),
                Some(why) => Err(*NoCheckpoint::ALL.get(usize::from(why))?),
            };
            if kind == b's' { Said::Started(checkpoint) } else { Said::Prepared(checkpoint) }
        }
        b'd' => {
            let (is_result, mut rest) = payload.split_first()?;
            let mut forms = Vec::new();
            while !rest.is_empty() {
                let (length, after) = rest.split_first_chunk::<2>()?;
                let (media_type, after) =
                    after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
                let (length, after) = after.split_first_chunk::<4>()?;
                let (content, after) =
                    after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                let mut media_type = String::from_utf8_lossy(media_type).into_owned();
                media_type.truncate(media_type.floor_char_boundary(MAX_MEDIA_TYPE));
                forms.push((media_type, content.to_vec()));
                rest = after;
            }
            Said::Shown { is_result: *is_result == 1, forms }
        }
        b'e' => {
            let &[end, ref code @ ..] = payload else { return None };
            Said::Ended { end, code: i32::from_be_bytes(code.try_into().ok()?) }
        }
        b'q' => Said::Completed(completed(payload).unwrap_or_default()),
        _ => return None,
    })
}

/// The names of an answer, if it has no more than it may.
fn completed(payload: &[u8]) -> Option<Completed> {
    let (start, mut rest) = payload.split_first_chunk::<4>()?;
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (name, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        if names.len() == MAX_NAMES || name.len() > MAX_NAME {
            return None;
        }
        names.push(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(Completed { start: u32::from_be_bytes(*start), names })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind][..], &u32::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
    }

    #[test]
    fn messages_come_in_pieces_of_any_size_with_their_sender() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours.into()).unwrap();
        let shown = [&[1][..], &[0, 4], b"text", &[0, 0, 0, 2], b"hi"].concat();
        let all = [
            message(b'r', b"3.13"),
            message(b's', &[1]),
            message(b'd', &shown),
            message(b'e', &[1, 0, 0, 0, 1]),
        ]
        .concat();
        // Those that are read together are not all taken together.
        theirs.write_all(&all).unwrap();
        assert!(!channel.has_message() && channel.next().unwrap().is_some());
        for _ in 0..3 {
            assert!(channel.has_message() && channel.next().unwrap().is_some());
        }
        assert!(!channel.has_message());
        let mut got = Vec::new();
        for piece in all.chunks(7) {
            theirs.write_all(piece).unwrap();
            while let Some(said) = channel.next().unwrap() {
                got.push(said);
            }
        }
        assert_eq!(
            got,
            [
                Said::Ready("3.13".to_owned()),
                Said::Started(Err(NoCheckpoint::Threads)),
                Said::Shown { is_result: true, forms: vec![("text".to_owned(), b"hi".to_vec())] },
                Said::Ended { end: 1, code: 1 },
            ]
        );
        assert_eq!(channel.sender, Some(rustix::process::getpid()));
        drop(theirs);
        assert!(channel.next().unwrap().is_none() && channel.is_closed);
    }

    #[test]
    fn a_kernel_that_never_stops_sending_is_read_only_for_a_while() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours.into()).unwrap();
        let flood = std::thread::spawn(move || {
            let many = message(b's', &[0]).repeat(10_000);
            // It ends when the other end is closed.
            while theirs.write_all(&many).is_ok() {}
        });
        for _ in 0..3 {
            let (mut reads, mut heard) = (2, 0);
            while channel.next_within(&mut reads).unwrap().is_some() {
                heard += 1;
            }
            assert!(heard <= 2 * CHUNK / HEADER, "{heard}");
        }
        drop(channel);
        flood.join().unwrap();
    }

    #[test]
    fn names_within_the_bounds_are_taken_and_late_ones_are_dropped() {
        let answer = |start: u32, names: &[&[u8]]| {
            let length = |name: &[u8]| u16::try_from(name.len()).unwrap().to_be_bytes();
            let names = names.iter().flat_map(|name| [&length(name)[..], name].concat());
            start.to_be_bytes().into_iter().chain(names).collect::<Vec<_>>()
        };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours.into()).unwrap();
        let long = [b'x'; MAX_NAME + 1];
        for wrong in [
            b"\0\0".to_vec(),
            answer(0, &[b"a", b"\xff"]),
            answer(0, &[&long]),
            answer(0, &[&b"a"[..]; MAX_NAMES + 1]),
            [answer(0, &[b"a"]), b"\0\x09a".to_vec()].concat(),
        ] {
            theirs.write_all(&message(b'q', &wrong)).unwrap();
            assert_eq!(channel.next().unwrap(), Some(Said::Completed(Completed::default())));
        }
        channel.give_up_names();
        theirs.write_all(&message(b'q', &answer(1, &[b"late"]))).unwrap();
        theirs.write_all(&message(b'q', &answer(2, &[b"in", b"time"]))).unwrap();
        let names = vec!["in".to_owned(), "time".to_owned()];
        assert_eq!(channel.next().unwrap(), Some(Said::Completed(Completed { start: 2, names })));
        assert_eq!(channel.late_names(), 0);
    }

    #[test]
    fn a_media_type_is_no_longer_than_the_server_takes() {
        let long = "ü".repeat(MAX_MEDIA_TYPE);
        let length = u16::try_from(long.len()).unwrap().to_be_bytes();
        let payload = [&[0][..], &length, long.as_bytes(), &[0, 0, 0, 0]].concat();
        let Some(Said::Shown { forms, .. }) = said(b'd', &payload) else { panic!("it is shown") };
        assert_eq!(forms[0].0, "ü".repeat(MAX_MEDIA_TYPE / 2));
    }

    #[test]
    fn long_messages_are_skipped_and_invalid_ones_are_errors() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours.into()).unwrap();
        let long = message(b'd', &vec![0; MAX_MESSAGE + 1]);
        let mut got = Vec::new();
        for piece in long.chunks(50_000).chain([&message(b'r', b"x")[..]]) {
            theirs.write_all(piece).unwrap();
            while let Some(said) = channel.next().unwrap() {
                got.push(said);
            }
        }
        assert_eq!(got, [Said::TooLong, Said::Ready("x".to_owned())]);
        for (kind, wrong) in [
            (b'd', &b"\x01\x00\xff"[..]),
            (b'd', b"\x01\x00\x01x\xff\xff\xff\xff"),
            // Words instead of a code or behind it, and an unknown code.
            (b's', b"\x01threads"),
            (b'p', b"\x63"),
            (b'e', b"\x01\0\0\0\x01ValueError"),
        ] {
            theirs.write_all(&message(kind, wrong)).unwrap();
            assert!(channel.next().is_err());
            (channel.received, channel.taken) = (Vec::new(), 0);
        }
    }
}
