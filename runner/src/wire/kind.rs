//! The kinds of frames.

use super::WireError;
#[cfg(doc)]
use super::*;

/// The kind of a frame: the meaning of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Server to runner: a [`Job`].
    Job = 1,
    /// Server to runner: a chunk of the workspace's tar stream.
    Tar = 2,
    /// Server to runner: a chunk of the program's standard input.
    Stdin = 3,
    /// Server to runner: everything was sent, start.
    Go = 4,
    /// Server to runner: a [`Preload`], before everything else.
    Preload = 5,
    /// Server to runner: a [`Session`], instead of a job.
    Session = 6,
    /// Server to runner: a [`Cell`].
    Cell = 7,
    /// Server to runner: interrupt the running cell.
    Interrupt = 8,
    /// Server to runner: the client does not wait for the running cell anymore.
    Cancel = 9,
    /// Server to runner: a [`Rewind`].
    Rewind = 10,
    /// Server to runner: list the files of the workspace.
    List = 11,
    /// Server to runner: a [`Read`].
    Read = 12,
    /// Server to runner: the number of an agent in four bytes, and bytes of its [messages](agent). The next agent is started by it.
    Agent = 13,
    /// Server to runner: kill the agent with the number in these four bytes.
    EndAgent = 14,
    /// Server to runner: an [`OpenContext`].
    OpenContext = 15,
    /// Server to runner: a [`CloseContext`].
    CloseContext = 16,
    /// Server to runner: say how much of its limits the sandbox uses.
    Measure = 17,
    /// Server to runner: an [`Installed`].
    Installed = 18,
    /// Server to runner: the number of a request for packages in four bytes, and a line about its progress.
    InstallProgress = 19,
    /// Server to runner: a [`KernelFork`].
    KernelFork = 20,
    /// Server to runner: a [`Complete`].
    Complete = 21,
    /// Runner to server: a [`Ready`].
    Ready = 64,
    /// Runner to server: bytes that the program wrote to its standard output.
    Stdout = 65,
    /// Runner to server: bytes that the program wrote to its standard error.
    Stderr = 66,
    /// Runner to server: an [`Exit`].
    Exit = 67,
    /// Runner to server: a [`Failed`].
    Failed = 68,
    /// Runner to server: the program starts now.
    Started = 69,
    /// Runner to server: a [`Preloaded`].
    Preloaded = 70,
    /// Runner to server: a [`ChangedFile`].
    File = 71,
    /// Runner to server: a chunk of the last file's content.
    Content = 72,
    /// Runner to server: an [`Alone`].
    Alone = 73,
    /// Runner to server: an [`Opened`].
    Opened = 74,
    /// Runner to server: a [`Shown`].
    Shown = 75,
    /// Runner to server: a chunk of the last [`Shown`].
    ShownContent = 76,
    /// Runner to server: output of processes that earlier cells have left.
    Background = 77,
    /// Runner to server: a [`CellEnded`].
    CellEnded = 78,
    /// Runner to server: a [`Rewound`].
    Rewound = 79,
    /// Runner to server: a [`Listed`].
    Listed = 80,
    /// Runner to server: a [`ReadEnded`].
    ReadEnded = 81,
    /// Runner to server: everything is ready for the next cell, so the sandbox can be frozen.
    Resting = 82,
    /// Runner to server: the number of an agent in four bytes, and bytes of its [messages](agent).
    AgentSaid = 83,
    /// Runner to server: an [`AgentEnded`](agent::AgentEnded).
    AgentEnded = 84,
    /// Runner to server: a [`ContextClosed`].
    ContextClosed = 85,
    /// Runner to server: a [`Usage`].
    Measured = 86,
    /// Runner to server: the number of a request for packages in four bytes, and the request as a program has sent it.
    Install = 87,
    /// Runner to server: the number, in four bytes, of a request whose program no longer waits; with another byte, of one whose set could
    /// not be placed.
    InstallEnded = 88,
    /// Runner to server: a [`Completed`].
    Completed = 89,
}

impl TryFrom<u8> for Kind {
    type Error = WireError;

    fn try_from(byte: u8) -> Result<Self, WireError> {
        Ok(match byte {
            1 => Self::Job,
            2 => Self::Tar,
            3 => Self::Stdin,
            4 => Self::Go,
            5 => Self::Preload,
            6 => Self::Session,
            7 => Self::Cell,
            8 => Self::Interrupt,
            9 => Self::Cancel,
            10 => Self::Rewind,
            11 => Self::List,
            12 => Self::Read,
            13 => Self::Agent,
            14 => Self::EndAgent,
            15 => Self::OpenContext,
            16 => Self::CloseContext,
            17 => Self::Measure,
            18 => Self::Installed,
            19 => Self::InstallProgress,
            20 => Self::KernelFork,
            21 => Self::Complete,
            64 => Self::Ready,
            65 => Self::Stdout,
            66 => Self::Stderr,
            67 => Self::Exit,
            68 => Self::Failed,
            69 => Self::Started,
            70 => Self::Preloaded,
            71 => Self::File,
            72 => Self::Content,
            73 => Self::Alone,
            74 => Self::Opened,
            75 => Self::Shown,
            76 => Self::ShownContent,
            77 => Self::Background,
            78 => Self::CellEnded,
            79 => Self::Rewound,
            80 => Self::Listed,
            81 => Self::ReadEnded,
            82 => Self::Resting,
            83 => Self::AgentSaid,
            84 => Self::AgentEnded,
            85 => Self::ContextClosed,
            86 => Self::Measured,
            87 => Self::Install,
            88 => Self::InstallEnded,
            89 => Self::Completed,
            other => return Err(WireError::UnknownKind(other)),
        })
    }
}
