//! The wire protocol between the server and the runner, version [`VERSION`].
//!
//! Both directions carry frames: one byte of kind, four bytes of payload length (big endian), the
//! payload. Control payloads are JSON, bulk payloads are raw bytes.
//!
//! ```text
//! runner                                server
//!   Ready {version}          ──────▶             a job can be sent
//!                            ◀──────  Preload    an interpreter to start ahead of it; optional
//!   Preloaded {memory …}     ──────▶             and once more for one with modules
//!                                                parked from here on, possibly frozen
//!                            ◀──────  Job        the program, and its limits
//!                            ◀──────  Tar …      the workspace, in chunks of one tar stream
//!                            ◀──────  Stdin …    the program's whole standard input, in chunks
//!                            ◀──────  Go         unpack, start, the deadline begins
//!   Started                  ──────▶             from here on, a failure is the program's doing
//!   Stdout … Stderr …        ──────▶             heads as they are printed
//!   Alone {memory}           ──────▶             interpreters that it did not need are gone; if it runs so long
//!   Stdout … Stderr …        ──────▶             tails, once the program has ended
//!   File, Content … …        ──────▶             the files that it left in the workspace
//!   Exit | Failed            ──────▶             the last frame
//! ```
//!
//! Instead of a job, the server can send a [`Session`]. The sandbox then serves one cell after the other, as
//! [`session`] says.
//!
//! While a program runs, it can ask for packages, as [`install`] says.
//!
//! Neither side trusts the other with memory: a frame longer than [`MAX_PAYLOAD`] is an error, and
//! so is a kind that does not belong to the direction.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::bounds::{Bounds, OutputLimits, WantedFiles};
pub use self::decoder::FrameDecoder;
pub use self::install::{
    Installed, MAX_INSTALL_REQUEST, MAX_INSTALLS, MAX_PROGRESS, numbered, refused,
};
pub use self::kind::Kind;
pub use self::session::{
    Cell, CellEnd, CellEnded, CellRun, CloseContext, Complete, Completed, ContextClosed, Kernel,
    KernelFork, Listed, NoCheckpoint, Occasion, OpenContext, Opened, Read, ReadEnded, ReadError,
    Rewind, Rewound, Session, Shown, UndoneFiles,
};

pub mod agent;
mod bounds;
mod decoder;
pub mod install;
mod kind;
pub mod session;

/// Exit code of process 1 after the runner, its child, has ended. No engine gives it.
pub const RUNNER_ENDED: u8 = 70;

/// Version of the protocol, sent by the runner in [`Ready`]. The server refuses any other.
pub const VERSION: u32 = 15;

/// Longest payload of a frame, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Maximum number of created or changed files that are listed.
pub const MAX_FILES: usize = 1000;

/// Longest path of a listed file, in bytes.
pub const MAX_PATH: usize = 4096;

/// Bytes of a frame before its payload.
pub const HEADER_LEN: usize = 5;

/// A stream that does not follow the protocol.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The first byte of a frame names no [`Kind`].
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A frame announces more than [`MAX_PAYLOAD`] bytes.
    #[error("a frame of {0} bytes is longer than the limit of {MAX_PAYLOAD} bytes")]
    TooLong(usize),
    /// A frame that is fine by itself came at the wrong moment.
    #[error("unexpected {0:?} frame")]
    Unexpected(Kind),
    /// A control payload is not the JSON it should be.
    #[error("a {kind:?} frame can't be read: {why:?}")]
    Payload {
        /// Kind of the frame.
        kind: Kind,
        /// The error, in no more than 300 characters. They can be the sender's, so they are quoted.
        why: String,
    },
    /// The stream itself failed, or ended inside a frame.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<WireError> for io::Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Io(error) => error,
            other => Self::other(other),
        }
    }
}

/// The runner can take a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The runner's [`VERSION`].
    pub version: u32,
}

/// An interpreter that is started before its program and waits for it.
///
/// If modules are named there are two: a bare one, which a program can't distinguish from a new one, and one
/// that has imported the modules, for programs that are likely to use them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preload {
    /// Its kind: each is stopped before its program in a different way.
    pub interpreter: Interpreter,
    /// The start of a command. It serves every job whose command begins like this.
    pub argv: Vec<String>,
    /// Variables added to the image's. It serves jobs with the same variables.
    pub env: BTreeMap<String, String>,
    /// Absolute path of the workspace.
    pub workdir: String,
    /// Modules to import.
    pub modules: Vec<String>,
    /// Memory that the interpreter with modules may take, in bytes. If it takes more it is not used.
    pub memory: u64,
    /// Whether the engine forks the interpreter into the sandbox, where it connects to the runner. Otherwise the
    /// runner starts it.
    #[serde(default)]
    pub forked: bool,
}

/// An interpreter that can be stopped before it runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpreter {
    /// CPython, or another that imports `sitecustomize`.
    Python,
    /// Node.js.
    Node,
}

impl Interpreter {
    /// Its name, for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Node => "Node.js",
        }
    }
}

/// The interpreter that is right for a program. If it isn't there, the program gets a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// One that is started for the program.
    New,
    /// One that waits and has imported nothing.
    Bare,
    /// One that waits and has imported [`Preload::modules`], or else a bare one.
    Loaded,
    /// One that is forked into the sandbox for a session, or else one of those that wait.
    Forked,
}

/// The state of the interpreters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preloaded {
    /// Memory of the interpreters that wait, in bytes; what they share with other sandboxes, as the
    /// files that they run, is not counted.
    pub memory: u64,
    /// Failures to do as [`Preload`] asked, one sentence each. Programs then get a new interpreter.
    pub complaints: Vec<String>,
    /// Why the interpreter that was just forked into the sandbox was not ready.
    pub not_ready: Option<String>,
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The program and its arguments; the program is looked up in the job's `PATH`.
    pub argv: Vec<String>,
    /// Variables added to those that the image sets.
    pub env: BTreeMap<String, String>,
    /// Absolute path of the workspace, where the tar is unpacked and the program starts.
    pub workdir: String,
    /// Its bounds.
    pub bounds: Bounds,
    /// CPU time after which the kernel ends a process of the program, to the nearest second.
    pub cpu_time: Option<Duration>,
    /// Which of the interpreters that wait may run the program.
    pub interpreter: Wanted,
    /// The set of packages that it can import from, if any.
    #[serde(default)]
    pub packages: Option<Packages>,
}

/// A set of packages in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packages {
    /// The interpreter that imports them.
    pub interpreter: Interpreter,
    /// Its folder: the user base of Python, or the folder with `node_modules`.
    pub folder: String,
}

/// A file that the program created or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedFile {
    /// Its path below the workspace. Bytes that are not UTF-8 are written as `\xff`, and a backslash before an x as `\x5c`.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether its content follows.
    pub sent: bool,
}

/// No waiting interpreter is left in the sandbox, except the one that runs the program. Programs that end at
/// once end before this is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    /// Memory that the program's interpreter held before the program came, in bytes, if it has imported modules. Any
    /// other takes no more than one that is started for the program.
    pub memory: u64,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Why the runner killed the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// The job's deadline passed.
    Deadline,
    /// It printed more than [`OutputLimits::kill`].
    OutputLimit,
    /// Its client does not wait for it anymore. That is for cells: the sandbox of a job is removed instead.
    Cancelled,
}

/// Counts of one output stream, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCount {
    /// Written by the program.
    pub total: u64,
    /// In neither the head nor the tail.
    pub dropped: u64,
}

/// Maximum number of files in `/tmp` that are named.
pub const MAX_IN_TMP: usize = 3;

/// The program ran; the last frame of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// How it ended.
    pub end: End,
    /// Why the runner ended it, if it did.
    pub killed: Option<KillReason>,
    /// From start to end.
    pub wall: Duration,
    /// User and system time of the program and of those of its children that ended. What an
    /// interpreter used before it took the program is not counted.
    pub cpu: Duration,
    /// Highest memory use of the sandbox, in bytes, where the kernel tells.
    pub peak_memory: Option<u64>,
    /// Processes of the sandbox that the kernel killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Processes and threads that could not start because the process limit was reached.
    pub refused_forks: u64,
    /// Directories of [`Bounds::disks`] that have no room left.
    pub full_disks: Vec<String>,
    /// Standard output.
    pub stdout: StreamCount,
    /// Standard error.
    pub stderr: StreamCount,
    /// Whether created or changed files are missing from the list, because they
    /// were too many or could not be read.
    pub more_files: bool,
    /// Names of files that it left in `/tmp`, at most [`MAX_IN_TMP`]. They are not sent.
    pub in_tmp: Vec<String>,
    /// Time that unpacking the workspace took.
    pub unpack: Duration,
    /// Time that starting the program took.
    pub spawn: Duration,
    /// Whether an interpreter that waited took the program.
    pub preloaded: bool,
}

impl Exit {
    /// The report on a program of which only the end is known.
    pub fn of(end: End) -> Self {
        Self {
            end,
            killed: None,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_memory: None,
            oom_kills: 0,
            refused_forks: 0,
            full_disks: Vec::new(),
            stdout: StreamCount::default(),
            stderr: StreamCount::default(),
            more_files: false,
            in_tmp: Vec::new(),
            unpack: Duration::ZERO,
            spawn: Duration::ZERO,
            preloaded: false,
        }
    }
}

/// The program did not run; the last frame of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The step that failed.
    pub cause: FailedCause,
    /// The system's message.
    pub message: String,
}

/// Why a program could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailedCause {
    /// The workspace has no room for the request's files.
    WorkspaceFull,
    /// The workspace could not be unpacked for another reason.
    Workspace,
    /// The set of packages is not where the job says.
    Packages,
    /// The program is not in the image, or can't be executed.
    Command,
    /// The folder in which an interpreter should start is not there.
    Folder,
    /// The context has no interpreter: it has ended.
    Kernel,
    /// The server's frames were not understood.
    Protocol,
}

/// The header of a frame.
///
/// # Panics
///
/// If `len` is above [`MAX_PAYLOAD`]: that is a mistake of the sender, not an input.
pub fn header(kind: Kind, len: usize) -> [u8; HEADER_LEN] {
    assert!(len <= MAX_PAYLOAD, "a frame of {len} bytes must be cut by its sender");
    let len = (len as u32).to_be_bytes();
    [kind as u8, len[0], len[1], len[2], len[3]]
}

/// Reads a frame's header.
///
/// # Errors
///
/// [`WireError::UnknownKind`] and [`WireError::TooLong`].
pub fn parse_header(bytes: [u8; HEADER_LEN]) -> Result<(Kind, usize), WireError> {
    let kind = Kind::try_from(bytes[0])?;
    let len = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
    if len > MAX_PAYLOAD {
        return Err(WireError::TooLong(len));
    }
    Ok((kind, len))
}

/// Appends a frame with a JSON payload to `buffer`.
///
/// # Errors
///
/// [`WireError::TooLong`] if the message is longer than a frame may be.
pub fn push_message<T: Serialize>(
    buffer: &mut Vec<u8>,
    kind: Kind,
    message: &T,
) -> Result<(), WireError> {
    let payload = serde_json::to_vec(message).map_err(|error| no_payload(kind, &error))?;
    if payload.len() > MAX_PAYLOAD {
        return Err(WireError::TooLong(payload.len()));
    }
    buffer.extend_from_slice(&header(kind, payload.len()));
    buffer.extend_from_slice(&payload);
    Ok(())
}

/// Appends `bytes` to `buffer`, as many frames of `kind` as they need; none if there are no bytes.
pub fn push_bytes(buffer: &mut Vec<u8>, kind: Kind, bytes: &[u8]) {
    for chunk in bytes.chunks(MAX_PAYLOAD) {
        buffer.extend_from_slice(&header(kind, chunk.len()));
        buffer.extend_from_slice(chunk);
    }
}

/// Reads the payload of a control frame.
///
/// # Errors
///
/// [`WireError::Payload`] if it is not the JSON of a `T`.
pub fn parse_message<'a, T: Deserialize<'a>>(
    kind: Kind,
    payload: &'a [u8],
) -> Result<T, WireError> {
    serde_json::from_slice(payload).map_err(|error| no_payload(kind, &error))
}

/// The error repeats what it found, which can be as long as a frame.
fn no_payload(kind: Kind, error: &serde_json::Error) -> WireError {
    const LONGEST: usize = 300;
    WireError::Payload { kind, why: error.to_string().chars().take(LONGEST).collect() }
}

/// Reads one whole frame from a blocking stream; `None` at the end of the stream.
///
/// # Errors
///
/// As [`parse_header`], and [`WireError::Io`] where the stream fails or ends inside a frame.
pub fn read_frame(stream: &mut impl io::Read) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
    let mut head = [0; HEADER_LEN];
    loop {
        match stream.read(&mut head[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    stream.read_exact(&mut head[1..])?;
    let (kind, len) = parse_header(head)?;
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload)?;
    Ok(Some((kind, payload)))
}

#[cfg(test)]
mod tests;
