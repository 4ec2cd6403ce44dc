//! The errors of calls to an agent.

use std::io;

use isolator_runner::wire::agent::{
    AgentEnd, Failure, MAX_ATTACHED, MAX_CALLS, MAX_LISTED, MAX_PROCESSES, MAX_WATCHED,
    MAX_WATCHERS,
};
use rustix::io::Errno;

use crate::pool::admission::AdmissionError;
use crate::pool::session::{EndReason, SessionError};

/// Why a call to the agent of a session has failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no such file or folder.
    #[error("there is no file or folder {0:?}")]
    NotFound(String),
    /// It is a folder, and not a file.
    #[error("{0:?} is a folder")]
    IsFolder(String),
    /// It is no folder.
    #[error("{0:?} is not a folder")]
    NotFolder(String),
    /// It is a pipe, socket or device.
    #[error("{0:?} is not a file: it is a pipe, a socket or a device")]
    NotFile(String),
    /// Something else has this path.
    #[error("{0:?} is there already")]
    Exists(String),
    /// The folder has files.
    #[error("the folder {0:?} is not empty")]
    NotEmpty(String),
    /// The file system of the file is full.
    #[error("there is no space left for {0:?}")]
    NoSpace(String),
    /// The user of the sandbox may not do this.
    #[error("access to {0:?} is denied: it belongs to another user, or can only be read")]
    Denied(String),
    /// There are as many as there may be.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// The arguments of the call are longer than they may be.
    #[error("the call has {given} bytes, and may have {most}: write a file for long texts")]
    TooLong {
        /// Bytes of the call.
        given: usize,
        /// The limit.
        most: usize,
    },
    /// No process that was started in this way has the number.
    #[error("there is no process {0}, or it has ended")]
    NoProcess(u32),
    /// The standard input of the process is not open.
    #[error("the standard input of process {0} is not open")]
    NoInput(u32),
    /// The process does not read its input.
    #[error("process {0} has not read its input in time")]
    InputNotRead(u32),
    /// A list has not arrived in time.
    #[error(
        "the list did not arrive in time, because the sandbox is busy: list fewer folders, or try again"
    )]
    ListLate,
    /// There is no room for a list.
    #[error("the server has no memory left for this list: read other answers first, or try again")]
    NoRoomForList,
    /// The process has no terminal.
    #[error("process {0} has no terminal")]
    NoTerminal(u32),
    /// There is no such signal.
    #[error("there is no signal {0}")]
    NoSignal(i32),
    /// The program can't be started.
    #[error("{program:?} can't be started: {source}")]
    NotStarted {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// Changes of watched files were lost.
    #[error(
        "files changed faster than the changes were read, and some changes are lost: watch again"
    )]
    Overrun,
    /// The system refuses it for another reason.
    #[error("{path:?}: {source}")]
    System {
        /// The file or folder.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The agent has ended.
    #[error("the process in the sandbox that does this for clients was lost: {0}. Try again")]
    Lost(#[source] AgentLoss),
    /// The session has ended, or the server is busy.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Something of which there are as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// Calls and streams.
    #[error("{MAX_CALLS} calls and streams of this session are open already, and no more can be")]
    Calls,
    /// Attachments.
    #[error(
        "{MAX_ATTACHED} streams of processes of this session are open already, and no more can be"
    )]
    Attached,
    /// Processes.
    #[error("{MAX_PROCESSES} processes of this session run already, and no more can")]
    Processes,
    /// Entries.
    #[error("the folder has more than {MAX_LISTED} entries, or they are too long to be listed")]
    Entries,
    /// Watched trees or folders.
    #[error(
        "{MAX_WATCHERS} paths are watched already, or there are more than {MAX_WATCHED} folders below this one"
    )]
    Watched,
}

/// Why an agent was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AgentLoss {
    /// Its process has ended.
    #[error("a program has killed it, or memory ran out")]
    Ended,
    /// It did not do what it was asked.
    #[error("it did not answer in time")]
    Late,
    /// It has broken the protocol.
    #[error("it broke the protocol")]
    Protocol,
    /// It could not be started.
    #[error("it could not be started, because of error {0} of the system")]
    NotStarted(i32),
}

impl From<AgentEnd> for AgentLoss {
    fn from(end: AgentEnd) -> Self {
        match end {
            AgentEnd::Ended => Self::Ended,
            AgentEnd::Deaf => Self::Late,
            AgentEnd::NotStarted(errno) => Self::NotStarted(errno),
        }
    }
}

/// Why a call has no answer, or its stream no proper end.
#[derive(Debug, Clone)]
pub(super) enum Broken {
    /// The agent has answered with a failure.
    Failed(Failure),
    /// The agent was lost.
    Lost(AgentLoss),
    /// The call was not admitted.
    NotAdmitted(AdmissionError),
    /// The session has ended.
    Ended(EndReason),
    /// The session was paused.
    Paused,
    /// There are too many.
    TooMany(TooMany),
    /// The call is too long: the bytes that it has, and those that it may have.
    TooLong(usize, usize),
    /// The agent has sent something that does not belong to the call.
    Nonsense,
}

/// The subject of a call, as its client has named it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A path.
    Path(&'a str),
    /// A process.
    Process(u32),
    /// A program, and the folder in which it starts.
    Program(&'a str, &'a str),
    /// Everything.
    All,
}

impl Broken {
    /// The error of a call.
    pub(super) fn of(self, subject: Subject<'_>) -> AgentError {
        let failure = match self {
            Self::Failed(failure) => failure,
            Self::Lost(loss) => return AgentError::Lost(loss),
            Self::NotAdmitted(error) => return SessionError::Admission(error).into(),
            Self::Ended(reason) => return SessionError::Ended(reason).into(),
            Self::Paused => return SessionError::Paused.into(),
            Self::TooMany(what) => return what.into(),
            Self::TooLong(given, most) => return AgentError::TooLong { given, most },
            Self::Nonsense => return AgentError::Lost(AgentLoss::Protocol),
        };
        let pid = if let Subject::Process(pid) = subject { pid } else { 0 };
        let path = match subject {
            Subject::Path(path) | Subject::Program(_, path) => path,
            Subject::Process(_) | Subject::All => "/",
        };
        match failure {
            Failure::System(errno) | Failure::Start(errno) => of_errno(errno, path),
            Failure::Program(errno) => {
                let program = if let Subject::Program(program, _) = subject { program } else { "" };
                let source = io::Error::from_raw_os_error(errno);
                AgentError::NotStarted { program: program.to_owned(), source }
            }
            Failure::NotFile => AgentError::NotFile(path.to_owned()),
            Failure::NoProcess => AgentError::NoProcess(pid),
            Failure::NoInput => AgentError::NoInput(pid),
            Failure::NoTerminal => AgentError::NoTerminal(pid),
            Failure::NoSignal(signal) => AgentError::NoSignal(signal),
            Failure::TooManyProcesses => TooMany::Processes.into(),
            Failure::TooManyEntries => TooMany::Entries.into(),
            Failure::TooManyWatched => TooMany::Watched.into(),
            Failure::Overrun => AgentError::Overrun,
        }
    }
}

fn of_errno(errno: i32, path: &str) -> AgentError {
    let path = path.to_owned();
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => AgentError::NotFound(path),
        Errno::ISDIR => AgentError::IsFolder(path),
        Errno::NOTDIR => AgentError::NotFolder(path),
        Errno::EXIST => AgentError::Exists(path),
        Errno::NOTEMPTY => AgentError::NotEmpty(path),
        Errno::NOSPC | Errno::DQUOT => AgentError::NoSpace(path),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => AgentError::Denied(path),
        _ => AgentError::System { path, source: io::Error::from_raw_os_error(errno) },
    }
}
