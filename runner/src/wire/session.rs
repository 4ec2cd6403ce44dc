//! The messages of a session: a sandbox that serves many cells for one client.
//!
//! ```text
//! runner                                server
//!                            ◀──────  Session    instead of a job
//!   Opened | Failed          ──────▶             cells can be sent, unless the kernel is to be forked
//!                            ◀──────  KernelFork, then
//!   Opened | Failed          ──────▶             cells can be sent
//!                            ◀──────  Cell       then, as for a job: Tar … Stdin … Go
//!   Started                  ──────▶
//!   Stdout … Stderr …        ──────▶
//!   Shown, ShownContent … …  ──────▶             things that the cell shows, and its value
//!                            ◀──────  Interrupt | Cancel, while it runs
//!   Background …             ──────▶             output of processes that earlier cells have left
//!   File, Content … …        ──────▶
//!   CellEnded | Failed       ──────▶             the next message can come
//!   Resting                  ──────▶             soon after each answer: the sandbox can be frozen
//!                            ◀──────  Rewind
//!   Rewound                  ──────▶
//!                            ◀──────  List
//!   File … Listed            ──────▶
//!                            ◀──────  Read
//!   Content … ReadEnded      ──────▶
//!                            ◀──────  Agent | EndAgent, at any time between messages, also while a cell runs
//!   AgentSaid | AgentEnded   ──────▶             the same
//!                            ◀──────  Measure, at any time as well
//!   Measured                 ──────▶             the same
//!   Install | InstallEnded   ──────▶             at any time as well, while the sandbox is not frozen
//!                            ◀──────  InstallProgress | Installed, the same
//!                            ◀──────  OpenContext
//!   Opened | Failed          ──────▶
//!                            ◀──────  CloseContext
//!   ContextClosed            ──────▶
//!                            ◀──────  Complete
//!   Completed                ──────▶
//! ```
//!
//! The end of the server's stream is the end of the session. An interruption that comes when no cell runs does nothing.
//!
//! A session can have several kernels over the same files, its *contexts*. That of the [`Session`] has the number 0. One cell runs
//! at a time, in whichever context.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Bounds, Exit, Interpreter, Packages, Wanted};

/// Maximum number of things that a cell can show.
pub const MAX_SHOWN: u32 = 500;

/// Longest media type of a form, in bytes.
pub const MAX_MEDIA_TYPE: usize = 200;

/// The beginning of media types that only programs are shown: `error`, `table`, `chart` and `json` (a list or
/// dictionary) follow, as JSON.
pub const FOR_PROGRAMS: &str = "application/vnd.isolator.";

/// Longest text before the cursor for which names are asked, in bytes.
pub const MAX_COMPLETED_TEXT: usize = 16 * 1024;

/// Maximum number of names that complete a word.
pub const MAX_NAMES: usize = 200;

/// Longest name that completes a word, in bytes.
pub const MAX_NAME: usize = 200;

/// Bytes that each form of a thing counts in addition to its content.
pub const SHOWN_OVERHEAD: u64 = 100;

/// A sandbox that serves many cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The interpreter that runs cells of code, if the language has one. Otherwise each cell is a separate program.
    pub kernel: Option<Kernel>,
    /// Absolute path of the workspace.
    pub workdir: String,
    /// Maximum number of checkpoints that are kept.
    pub checkpoints: u32,
}

/// An interpreter that runs one cell after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Which one it is.
    pub interpreter: Interpreter,
    /// The command that starts it. The number of its channel follows.
    pub argv: Vec<String>,
    /// The command of waiting interpreters that can become the kernel.
    pub waiting: Vec<String>,
    /// Variables added to the image's.
    pub env: BTreeMap<String, String>,
    /// The kind of waiting interpreter that becomes the kernel.
    pub wanted: Wanted,
    /// The set of packages that its cells can import from, if any.
    #[serde(default)]
    pub packages: Option<Packages>,
}

/// Whether the interpreter comes that is to be forked into the sandbox for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFork {
    /// Whether it does. Otherwise something else may be in the sandbox.
    pub comes: bool,
}

/// The session can serve cells. A session whose kernel is to be forked is open before that has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The version of the kernel's interpreter, as it says it.
    pub version: Option<String>,
    /// Whether the kernel is an interpreter that waited, or was forked.
    pub preloaded: bool,
    /// Why the interpreter that was forked for it is not the kernel, unless it has declined: it may serve other sessions.
    #[serde(default)]
    pub not_ready: Option<String>,
    /// Memory of the sandbox now, in bytes, where the kernel tells.
    pub memory: Option<u64>,
}

/// A cell to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Its number in the session, beginning with one.
    pub number: u32,
    /// How to run it.
    pub run: CellRun,
    /// Its bounds.
    pub bounds: Bounds,
    /// Maximum size of the things that it shows, in bytes.
    pub shown: u64,
    /// Files of the tar that are appended to existing ones. The others replace them.
    pub appended: Vec<String>,
    /// The context whose kernel runs its code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context: u32,
    /// Whether the session goes on without the kernel if this is gone and there is no checkpoint. It always does in a context other
    /// than 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_session: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Starts the kernel of a context. If the context has one it ends first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenContext {
    /// Its number.
    pub context: u32,
    /// The interpreter. It gets the session's packages, if they are for it.
    pub kernel: Kernel,
    /// The folder in which it starts: below the workspace, or absolute.
    pub cwd: String,
}

/// Ends the kernel of a context. Other processes that its cells have started live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseContext {
    /// Its number.
    pub context: u32,
}

/// The answer to a [`CloseContext`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextClosed {
    /// Whether it was open.
    pub was_open: bool,
}

/// How a cell runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellRun {
    /// The kernel runs the code that comes in the frames of standard input.
    Code {
        /// Whether it is TypeScript.
        typescript: bool,
        /// Columns of the terminal that shows the values, if it is one. Otherwise they are laid out as in a notebook.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        columns: Option<u16>,
        /// Variables that are set only for this cell.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
        /// Whether it is shown to a program instead of a person: exceptions, the data of tables and that of charts are shown as JSON,
        /// in the media types that begin with [`FOR_PROGRAMS`], and values in all their forms.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        for_program: bool,
    },
    /// It does not run: only its files are written.
    Files,
    /// As a separate program, with standard input.
    Program {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables added to those that the image sets.
        env: BTreeMap<String, String>,
        /// Where it starts: below the workspace, or absolute.
        cwd: String,
    },
}

impl CellRun {
    /// Code that is shown to a person.
    pub const fn code() -> Self {
        Self::Code { typescript: false, columns: None, env: BTreeMap::new(), for_program: false }
    }
}

/// Something that a cell shows. As many bytes of [`ShownContent`](super::Kind::ShownContent) follow as `size` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Number of the thing in the cell, beginning with zero. All forms of a thing have the same number.
    pub thing: u32,
    /// The occasion on which it is shown.
    pub occasion: Occasion,
    /// Media type of this form.
    pub media_type: String,
    /// Bytes of its content.
    pub size: u64,
    /// Whether it is the last form of the thing.
    pub is_last: bool,
}

/// The occasion on which something is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// It is the value of the last expression of a cell.
    Result,
    /// A cell shows it while it runs.
    #[default]
    Cell,
    /// Threads or timers of earlier cells have shown it before the cell began.
    Background,
}

/// How the code of a cell ended, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellEnd {
    /// It ran to its end.
    Ended,
    /// An exception ended it.
    Raised,
    /// It was interrupted.
    Interrupted,
    /// It asked to exit, as with `sys.exit()`. The session goes on.
    Exited,
    /// The kernel did not say: its process has ended or was killed.
    Died,
    /// The kernel did not take the cell, because of an earlier one.
    NotBegun,
}

/// A cell has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellEnded {
    /// The same report as for a job's program.
    pub exit: Exit,
    /// How the code ended; `None` for a program.
    pub end: Option<CellEnd>,
    /// How many cells were undone: zero, one, or more if the newest checkpoints are gone.
    pub undone: u32,
    /// The files that were undone with them; `None` if that is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_files: Option<UndoneFiles>,
    /// Why there was no checkpoint before this cell, if there was none.
    pub no_checkpoint: Option<NoCheckpoint>,
    /// How many cells can be rewound now.
    pub checkpoints: u32,
    /// Whether the session goes on.
    pub is_alive: bool,
    /// Memory of the sandbox now, in bytes, where the kernel tells.
    pub memory: Option<u64>,
    /// Bytes of the output of earlier cells' processes that are not sent.
    pub background_dropped: u64,
    /// Number of shown things that are not sent, because they are too large together.
    pub shown_dropped: u32,
    /// Whether its context has no kernel anymore, and the session goes on without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_kernel_gone: bool,
}

/// The files that were undone with cells: those of the workspace, except for some.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneFiles {
    /// Some of those that are not as they were.
    pub left: Vec<String>,
    /// Number of the others.
    pub more: u32,
    /// Whether there may be files of which it is not known how they were.
    pub has_unknown: bool,
}

/// Most names in [`UndoneFiles::left`], and their greatest length.
const MAX_LEFT: usize = 5;
const MAX_LEFT_NAME: usize = 200;

impl UndoneFiles {
    /// Of all files but these. `is_complete`: whether it is known of all files how they were.
    pub fn new(left: impl Iterator<Item = String>, is_complete: bool) -> Self {
        let mut files = Self { has_unknown: !is_complete, ..Self::default() };
        for name in left {
            if files.left.len() < MAX_LEFT && name.len() <= MAX_LEFT_NAME {
                files.left.push(name);
            } else {
                files.more = files.more.saturating_add(1);
            }
        }
        files
    }

    /// Whether all files are as they were.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.left.is_empty() && self.more == 0 && !self.has_unknown
    }
}

/// Why there is no checkpoint before a cell, as the kernel says. The kernel sends codes and no words, so that no program can put its own
/// words into the server's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoCheckpoint {
    /// Threads are running.
    Threads,
    /// It is not known whether threads are running.
    UncountedThreads,
    /// A process that it has started is there, or has ended and was not waited for.
    Processes,
    /// A timer is running.
    Timer,
    /// It has locked a file.
    Lock,
    /// The system made no process for it.
    NoProcess,
    /// None was asked for.
    NotAsked,
    /// Its interpreter can't be copied.
    NeverThere,
}

impl NoCheckpoint {
    /// All of them, in the order of the kernels' codes, which begin with one.
    pub const ALL: [Self; 8] = [
        Self::Threads,
        Self::UncountedThreads,
        Self::Processes,
        Self::Timer,
        Self::Lock,
        Self::NoProcess,
        Self::NotAsked,
        Self::NeverThere,
    ];

    /// The reason, in words that fit after "because".
    pub const fn why(self) -> &'static str {
        match self {
            Self::Threads => "threads are running",
            Self::UncountedThreads => "its threads can't be counted",
            Self::Processes => "a process that it has started is still there",
            Self::Timer => "a timer is running",
            Self::Lock => "it has locked a file",
            Self::NoProcess => "the sandbox can't have another process",
            Self::NotAsked => "none was asked for",
            Self::NeverThere => "its interpreter can't be copied while it runs",
        }
    }
}

/// Go back to before earlier cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    /// How many cells of code to undo, at least one.
    pub cells: u32,
}

/// The answer to a [`Rewind`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewound {
    /// How many cells were undone; zero if there are not as many checkpoints.
    pub cells: u32,
    /// The files that were undone with them; `None` if that is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<UndoneFiles>,
    /// How many more can be.
    pub checkpoints: u32,
    /// Whether the session goes on.
    pub is_alive: bool,
}

/// Asks the session's own kernel for names that complete the word before the cursor. It is no cell, and nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// The text before the cursor, of at most [`MAX_COMPLETED_TEXT`] bytes.
    pub text: String,
}

/// The answer to a [`Complete`], as the kernel gives it. A kernel that does not answer in time has no names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completed {
    /// The place in the text, in bytes, where the word begins.
    pub start: u32,
    /// The names, at most [`MAX_NAMES`] of at most [`MAX_NAME`] bytes each.
    pub names: Vec<String>,
}

impl Completed {
    /// Whether it is an answer about a text, within the bounds.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        let has_start = usize::try_from(self.start).is_ok_and(|it| text.is_char_boundary(it));
        has_start
            && self.names.len() <= MAX_NAMES
            && self.names.iter().all(|name| name.len() <= MAX_NAME)
    }
}

/// All files of the workspace were listed, or as many as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Whether there are others.
    pub more: bool,
}

/// Read a part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Its path below the workspace, as it was listed.
    pub path: String,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// Most bytes to send.
    pub length: u64,
}

/// The answer to a [`Read`], after the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadEnded {
    /// Size of the file, if it can be read.
    pub size: Option<u64>,
    /// Why it can't.
    pub error: Option<ReadError>,
}

/// Why a file can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadError {
    /// There is no file of that name, or it is a link or a pipe.
    NoSuchFile,
    /// The error with this number of the system.
    System(i32),
}

/// How much of its limits a sandbox uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all of its processes since it was made.
    pub cpu: Duration,
    /// Bytes that count towards its limit of memory, if the runner can tell.
    pub memory: Option<u64>,
    /// Of these, bytes of files that the kernel can drop at any time.
    pub cache: u64,
    /// Bytes that files take in the file systems that programs can write to.
    pub disk: u64,
    /// Size of these file systems, in bytes.
    pub disk_size: u64,
}
