//! The messages between the server and the *agent* of a session: processes and files, while cells run or not.
//!
//! The runner passes their bytes on in frames of [`Kind::Agent`](super::Kind::Agent) and
//! [`Kind::AgentSaid`](super::Kind::AgentSaid), each of which begins with the number of the agent. The server counts the agents of a
//! session, beginning with one; a frame for the next one starts it.
//!
//! A message is one byte of [`MessageKind`], four bytes for the number of its call and four for its length (both big endian), and its
//! body. The server numbers its calls, beginning with one, and never uses a number twice:
//!
//! ```text
//! agent                                 server
//!                            ◀──────  Request    a call, in JSON
//!   Answer                   ──────▶             its answer; calls that are a stream go on
//!   Stdout, Content, … …     ──────▶             as much as the server has given credit for
//!                            ◀──────  Credit     more of it
//!   End                      ──────▶             the last message of a stream
//!                            ◀──────  Cancel     the server does not want the rest
//!                            ◀──────  Input      a call: bytes for the standard input of a process
//!                            ◀──────  Data …     bytes of the file that a call writes
//!                            ◀──────  Finish     all of them were sent; the Answer to this has the file
//!   Consumed                 ──────▶             bytes of the server that were read, with the number zero
//!   Running                  ──────▶             number of processes, with the number zero
//! ```
//!
//! A message of a stream costs [`cost`] of the credit, except [`MessageKind::End`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::End;

/// Longest body of a message, in bytes.
pub const MAX_BODY: usize = 256 * 1024;

/// Bytes of a message before its body.
pub const MESSAGE_HEADER: usize = 9;

/// Longest body of a request, in bytes.
pub const MAX_REQUEST: usize = 192 * 1024;

/// Most bytes of a file or of an output stream in one message.
pub const PIECE: usize = 16 * 1024;

/// Longest input of one call, in bytes.
pub const MAX_INPUT: usize = 32 * 1024;

/// Bytes that each message of a stream counts in addition to its body, so that empty messages have a bound, too.
pub const MESSAGE_OVERHEAD: u32 = 64;

/// Maximum number of calls and streams of a session at one time.
pub const MAX_CALLS: usize = 256;

/// Maximum number of attachments to processes at one time.
pub const MAX_ATTACHED: usize = 64;

/// Maximum number of processes of an agent at one time.
pub const MAX_PROCESSES: usize = 128;

/// Maximum number of entries that are listed, and how deep folders are listed.
pub const MAX_LISTED: usize = 10_000;

/// Deepest level that is listed.
pub const MAX_LISTED_DEPTH: u32 = 32;

/// Maximum number of watched trees at one time.
pub const MAX_WATCHERS: usize = 16;

/// Maximum number of folders of one watched tree.
pub const MAX_WATCHED: usize = 1000;

/// Credit that a message of a stream takes.
pub const fn cost(body: usize) -> u32 {
    (body as u32).saturating_add(MESSAGE_OVERHEAD)
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// Server to agent: a [`Request`].
    Request = 1,
    /// Server to agent: the number of a process in four bytes, and bytes for its standard input.
    Input = 2,
    /// Server to agent: bytes of a file that a call writes.
    Data = 3,
    /// Server to agent: the file is complete.
    Finish = 4,
    /// Server to agent: more credit for a stream, in four bytes.
    Credit = 5,
    /// Server to agent: the server does not wait for the rest of a call.
    Cancel = 6,
    /// Agent to server: an [`Answer`], or a [`Failure`].
    Answer = 64,
    /// Agent to server: bytes of the standard output of a process.
    Stdout = 65,
    /// Agent to server: bytes of the standard error of a process.
    Stderr = 66,
    /// Agent to server: bytes of the terminal of a process.
    Terminal = 67,
    /// Agent to server: bytes of a file.
    Content = 68,
    /// Agent to server: an [`Entry`] of a list.
    Entry = 69,
    /// Agent to server: a [`ProcessInfo`] of a list.
    Process = 70,
    /// Agent to server: a [`WatchEvent`].
    Event = 71,
    /// Agent to server: a [`StreamEnd`].
    End = 72,
    /// Agent to server: the number of bytes that the agent has read so far, in eight bytes.
    Consumed = 73,
    /// Agent to server: the number of processes that run, in four bytes.
    Running = 74,
}

impl MessageKind {
    /// The kind with this byte, if there is one.
    pub fn of(byte: u8) -> Option<Self> {
        const ALL: [MessageKind; 17] = [
            MessageKind::Request,
            MessageKind::Input,
            MessageKind::Data,
            MessageKind::Finish,
            MessageKind::Credit,
            MessageKind::Cancel,
            MessageKind::Answer,
            MessageKind::Stdout,
            MessageKind::Stderr,
            MessageKind::Terminal,
            MessageKind::Content,
            MessageKind::Entry,
            MessageKind::Process,
            MessageKind::Event,
            MessageKind::End,
            MessageKind::Consumed,
            MessageKind::Running,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A call of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a process and attach to it: a stream. The number is the credit, as in all streams.
    Start(StartProcess, u32),
    /// Attach to a process that runs, or has ended a moment ago: a stream.
    Attach(u32, u32),
    /// List the processes: a stream.
    Processes(u32),
    /// Close the standard input of a process.
    CloseInput(u32),
    /// Send a signal to the group of a process.
    Signal(u32, i32),
    /// Change the size of the terminal of a process.
    Resize(u32, TerminalSize),
    /// Describe a file or folder.
    Stat(String),
    /// List a folder down to a depth: a stream.
    List(String, u32, u32),
    /// Make a folder and those above it.
    MakeFolder(String),
    /// Give a file or folder another path.
    Rename(String, String),
    /// Remove a file, or a folder with everything in it.
    Remove(String),
    /// Read a file: a stream.
    Read(String, u32),
    /// Write a file. Its data follows.
    Write(String),
    /// Watch a file or folder, or the whole tree below it: a stream.
    Watch(String, bool, u32),
}

/// A process to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartProcess {
    /// The program and its arguments; the program is looked up in the image's `PATH`.
    pub argv: Vec<String>,
    /// Variables added to those of the session.
    pub env: BTreeMap<String, String>,
    /// Where it starts: absolute, or below the agent's home, which is the default.
    pub cwd: Option<String>,
    /// Whether its standard input stays open for input. Otherwise it is empty.
    pub keep_stdin: bool,
    /// Its terminal, if it has one instead of three pipes.
    pub terminal: Option<TerminalSize>,
    /// A text by which its client recognizes it.
    pub tag: Option<String>,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its number in the sandbox.
    pub pid: u32,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The variables that it was given.
    pub env: BTreeMap<String, String>,
    /// Where it was started.
    pub cwd: String,
    /// The text of its client.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub terminal: bool,
}

/// A file, folder or anything else that has a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// Its path from the root. Bytes that are not UTF-8 are written as `\xff`, and a backslash before an x as `\x5c`.
    pub path: String,
    /// Its kind.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// The name of its owner, or the number, if that has no name.
    pub owner: String,
    /// The name of its group, or the number.
    pub group: String,
    /// When it was changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link {
        /// What it says.
        target: String,
        /// The kind of file at its end, if there is one.
        leads_to: Option<LeadsTo>,
    },
    /// A pipe, socket or device.
    Other,
}

/// The kind of file that a link leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeadsTo {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// Something else.
    Other,
}

/// A change below a path that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// The kind of change.
    pub kind: WatchKind,
    /// The path of the file, from the root.
    pub path: String,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// It is there, made or moved.
    Create,
    /// It was written to.
    Write,
    /// It was removed.
    Remove,
    /// It has been given another path.
    Rename,
    /// Its permissions, its owner or its times were changed.
    Chmod,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done, or its stream begins.
    Done,
    /// The process of the stream.
    Process(u32),
    /// The file or folder.
    Entry(Entry),
    /// The folder, and whether it was made.
    Folder(Entry, bool),
    /// The size of the file that is read.
    Size(u64),
}

/// The last message of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamEnd {
    /// Everything was sent.
    Complete,
    /// The process has ended.
    Ended(End),
    /// It could not be gone on with.
    Failed(Failure),
}

/// Why a call has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The error with this number of the system.
    System(i32),
    /// The program can't be executed: the error with this number of the system.
    Program(i32),
    /// The folder that the process should start in can't be entered: the error with this number of the system.
    Start(i32),
    /// It is a pipe, socket or device.
    NotFile,
    /// No process of the agent has this number.
    NoProcess,
    /// The standard input of the process is not open.
    NoInput,
    /// The process has no terminal.
    NoTerminal,
    /// There is no signal of this number.
    NoSignal(i32),
    /// There are as many processes as there may be.
    TooManyProcesses,
    /// There are more entries than can be listed.
    TooManyEntries,
    /// There are as many watched trees as there may be, or the tree has too many folders.
    TooManyWatched,
    /// Changes were lost because they came faster than they were taken.
    Overrun,
}

/// A message: its kind, the number of its call, and its body.
pub type Message = (MessageKind, u32, Vec<u8>);

/// Appends a message to `buffer`.
///
/// # Panics
///
/// If the body is longer than [`MAX_BODY`]: that is a mistake of the sender, not an input.
pub fn push(buffer: &mut Vec<u8>, kind: MessageKind, call: u32, body: &[u8]) {
    assert!(body.len() <= MAX_BODY, "a message of {} bytes must be cut by its sender", body.len());
    buffer.push(kind as u8);
    buffer.extend_from_slice(&call.to_be_bytes());
    buffer.extend_from_slice(&(body.len() as u32).to_be_bytes());
    buffer.extend_from_slice(body);
}

/// Bytes that are not messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The first byte of a message names no [`MessageKind`].
    #[error("unknown kind of message {0}")]
    UnknownKind(u8),
    /// A message announces more than [`MAX_BODY`] bytes.
    #[error("a message of {0} bytes is longer than the limit of {MAX_BODY} bytes")]
    TooLong(usize),
}

/// Cuts messages out of a stream that arrives in pieces of any size.
#[derive(Debug, Default)]
pub struct MessageDecoder {
    buffer: Vec<u8>,
    start: usize,
}

impl MessageDecoder {
    /// Takes the next piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it is there.
    ///
    /// # Errors
    ///
    /// When the bytes are no messages. The stream is of no use after an error.
    pub fn next_message(&mut self) -> Result<Option<Message>, MessageError> {
        let rest = &self.buffer[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<MESSAGE_HEADER>() else {
            return Ok(None);
        };
        let [kind, c0, c1, c2, c3, l0, l1, l2, l3] = *head;
        let kind = MessageKind::of(kind).ok_or(MessageError::UnknownKind(kind))?;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_BODY {
            return Err(MessageError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let body = body.to_vec();
        self.start += MESSAGE_HEADER + length;
        Ok(Some((kind, u32::from_be_bytes([c0, c1, c2, c3]), body)))
    }
}

/// The end of an agent, as the runner reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEnded {
    /// The number of the agent.
    pub agent: u32,
    /// The cause.
    pub cause: AgentEnd,
}

/// Why an agent has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentEnd {
    /// Its process has ended: a program has killed it, or memory ran out.
    Ended,
    /// The runner has killed it because it did not read what it was sent.
    Deaf,
    /// It could not be started: the error with this number of the system.
    NotStarted(i32),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_that_lie_about_their_length_or_kind_are_errors() {
        let mut decoder = MessageDecoder::default();
        decoder.feed(&[MessageKind::Stdout as u8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(decoder.next_message(), Err(MessageError::TooLong(_))));
        let mut decoder = MessageDecoder::default();
        decoder.feed(&[99, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(decoder.next_message(), Err(MessageError::UnknownKind(99)));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cut in 1_usize..64,
        ) {
            let mut stream = Vec::new();
            for (call, body) in bodies.iter().enumerate() {
                push(&mut stream, MessageKind::Content, call as u32, body);
            }
            let mut decoder = MessageDecoder::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.feed(piece);
                while let Some((kind, call, body)) = decoder.next_message().unwrap() {
                    prop_assert_eq!((kind, call as usize), (MessageKind::Content, seen.len()));
                    seen.push(body);
                }
            }
            prop_assert_eq!(seen, bodies);
        }
    }
}
