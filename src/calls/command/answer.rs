//! Answers to the calls of commands, with everything that a command shows. A server sends them in this form.

use isolator_pool::error_chain::error_chain;
use isolator_pool::pool::session::{
    CellEnd, CellOutcome, EndReason, NoCheckpoint, Occasion, SessionError, ShownThing,
};
use isolator_pool::run::outcome::{Captured, ChangedFile, End, Outcome, Status};
use isolator_pool::run::output::Stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::CallError;
use crate::calls::served::{Ran, RunEnd};
use crate::config::Config;
use crate::node::LostHandle;
use crate::packages::Packages;
use crate::request::arguments::InvalidArgument;
use crate::result::context::{Caller, Context};
use crate::result::report::Report;
use crate::result::returned::FileReport;
use crate::result::units::ms;
use crate::result::{cell, explain};
use crate::sessions::gone::{Gone, Why};

/// The answer to a call of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandAnswer {
    /// A program has run.
    Finished(Box<Finished>),
    /// A session was opened.
    Opened(Box<OpenedSession>),
    /// A cell or shell command has run.
    Step(Box<FinishedStep>),
    /// A cell or shell command was killed.
    Killed(Killed),
    /// Cells were undone.
    Rewound {
        /// How many.
        undone: u32,
        /// How many more can be.
        left: u32,
        /// What is not as it was before.
        note: Option<String>,
    },
    /// Names that complete a word. A program can have chosen them.
    Completed {
        /// The place in the text, in bytes, where the word begins.
        start: u32,
        /// The names.
        names: Vec<String>,
    },
    /// Whether something was running and was interrupted or killed.
    Interrupted(bool),
    /// The session is closed.
    Closed,
    /// The session has ended before.
    SessionGone {
        /// Why.
        why: String,
        /// Whether its program has ended it.
        is_by_program: bool,
    },
}

/// Why a call of a command was not served.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandError {
    /// An argument can't be used.
    #[error("{field}: {message}")]
    Invalid {
        /// The argument.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// The policies forbid something.
    #[error("a policy forbids something, so nothing was run:\n{found}")]
    Refused {
        /// The violations.
        found: String,
    },
    /// The packages are not there, or the sandbox failed.
    #[error("{message}")]
    Failed {
        /// The error with its causes.
        message: String,
        /// Whether it is certain that nothing of the program has run.
        has_not_run: bool,
    },
}

/// The end of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Finished {
    /// The exit code of the command.
    pub code: i32,
    /// The status and the cause of a failure, unless the exit code alone says it.
    pub cause: Option<String>,
    /// Standard output.
    #[serde(with = "base64_text")]
    pub stdout: Vec<u8>,
    /// Standard error.
    #[serde(with = "base64_text")]
    pub stderr: Vec<u8>,
    /// Remarks for the author of the program.
    pub notes: Vec<String>,
    /// The files that it left.
    pub files: Vec<FinishedFile>,
    /// The same as data: the report of `execute_code`, and the receipt.
    pub data: Value,
}

/// A file that a program left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedFile {
    /// Its path below the working directory, which the program chose.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its content, if it was wanted and is not too large.
    pub content: Option<Bytes>,
}

/// Bytes, which are sent in base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes(#[serde(with = "base64_text")] pub Vec<u8>);

/// A session that was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenedSession {
    /// Its handle.
    pub session: String,
    /// Its interpreter and the version, if it has one.
    pub interpreter: Option<String>,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// Its limits.
    pub limits: SessionLimits,
}

/// The limits of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SessionLimits {
    /// The longest run time of a cell, in milliseconds.
    pub timeout_ms: u64,
    /// How much output of a cell is shown, in bytes.
    pub output: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// CPU cores.
    pub cpus: f64,
    /// Processes and threads.
    pub processes: u64,
    /// Size of its files in bytes.
    pub workspace: u64,
    /// Number of its files.
    pub files: u64,
    /// Cells that can be undone.
    pub checkpoints: u32,
}

/// The end of a cell or shell command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FinishedStep {
    /// Its number.
    pub cell: u32,
    /// Its status.
    pub status: String,
    /// The exit code of a command that runs only this.
    pub code: i32,
    /// The end of its process.
    pub end: Option<End>,
    /// The end of its code; `None` for a program.
    pub cell_end: Option<CellEnd>,
    /// The cause of a failure.
    pub cause: Option<String>,
    /// Remarks for its author.
    pub notes: Vec<String>,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// The things that it has shown, in order.
    pub shown: Vec<Shown>,
    /// Number of things that are missing there.
    pub shown_dropped: u32,
    /// Number of cells that were undone.
    pub undone: u32,
    /// What that means for variables and files.
    pub undone_state: Option<String>,
    /// Why there was no checkpoint before it.
    pub no_checkpoint: Option<NoCheckpoint>,
    /// Number of cells that can be rewound.
    pub checkpoints: u32,
    /// Output of processes and threads of earlier cells.
    #[serde(with = "base64_text")]
    pub background: Vec<u8>,
    /// Bytes that are missing there.
    pub background_dropped: u64,
    /// Whether the session goes on.
    pub is_alive: bool,
    /// Run time in milliseconds.
    pub ms: f64,
    /// CPU time in milliseconds.
    pub cpu_ms: f64,
    /// Peak memory in bytes, if it is known.
    pub peak_memory: Option<u64>,
}

/// The output of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    /// The stream's beginning, or all of it. This part was followed, if any was.
    #[serde(with = "base64_text")]
    pub head: Vec<u8>,
    /// Its end, where the middle is missing.
    #[serde(with = "base64_text")]
    pub tail: Vec<u8>,
    /// Number of bytes missing between them.
    pub dropped: u64,
}

/// Something that a cell has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    /// On which occasion.
    pub occasion: Occasion,
    /// Its forms: media types and contents.
    pub forms: Vec<Form>,
}

/// A form of a thing: its media type and its content.
pub(crate) type Form = (String, Bytes);

/// What became of something that was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Killed {
    /// It had not begun.
    Nothing,
    /// It has ended, and the session goes on.
    Cell {
        /// Its number.
        number: u32,
        /// What was undone with it, and what not.
        undone: Option<String>,
    },
    /// The session has ended with it.
    Session,
}

/// Something that comes before the answer: output, or a step before a program can start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Piece {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// A step; empty when the program can start.
    Step(String),
}

impl Piece {
    /// A piece of output.
    pub(crate) fn output(stream: Stream, bytes: &[u8]) -> Self {
        let bytes = Bytes(bytes.to_vec());
        match stream {
            Stream::Stdout => Self::Stdout(bytes),
            Stream::Stderr => Self::Stderr(bytes),
        }
    }
}

impl CommandAnswer {
    /// Its bytes, about.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Finished(finished) => finished.weight(),
            Self::Step(step) => step.weight(),
            _ => 1000,
        }
    }

    /// Whether it says that something has failed.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Finished(finished) => finished.code != 0,
            Self::Step(step) => step.has_failed(),
            Self::SessionGone { .. } => true,
            _ => false,
        }
    }

    pub(super) fn gone(gone: &Gone) -> Self {
        let is_by_program = matches!(gone.why, Why::Ended(EndReason::ByProgram(_)));
        Self::SessionGone { why: gone.why.to_string(), is_by_program }
    }

    /// The answer to a call whose session is on another node.
    pub(super) fn lost(lost: &LostHandle) -> Self {
        Self::SessionGone { why: lost.to_string(), is_by_program: false }
    }
}

impl From<InvalidArgument> for CommandError {
    fn from(InvalidArgument { field, message }: InvalidArgument) -> Self {
        Self::Invalid { field, message }
    }
}

impl From<CallError> for CommandError {
    fn from(error: CallError) -> Self {
        let has_not_run = error.outcome().is_not_run();
        match error {
            CallError::Invalid(error) => error.into(),
            CallError::Forbidden { found, .. } => Self::Refused { found: found.to_string() },
            error => Self::Failed { message: error_chain(&error), has_not_run },
        }
    }
}

impl CommandError {
    /// The status for metrics.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_arguments",
            Self::Refused { .. } => "refused",
            Self::Failed { .. } => "error",
        }
    }
}

impl Finished {
    /// Describes a run. `packages` are those that it could have had.
    pub(super) fn new(ran: &mut Ran, config: &Config, packages: &Packages) -> Self {
        let context = ran.context(config, Caller::CommandLine, Some(packages));
        let outcome = ran.outcome();
        let mut report = Report::new(outcome, &ran.unenforced, &context);
        let (code, cause) = (outcome.shell_code(), cause_of_program(outcome, &context));
        report.notes.splice(..0, ran.notes.iter().cloned());
        let of_file = |file: &ChangedFile| FileReport::named(file.path.clone(), file.size);
        report.files = outcome.files.iter().map(of_file).collect();
        let mut data = serde_json::to_value(&report).expect("plain data is JSON");
        data["receipt"] = serde_json::to_value(&ran.receipt).expect("plain data is JSON");
        let outcome = ran.outcome_mut();
        let file = |ChangedFile { path, size, content }| FinishedFile {
            path,
            size,
            content: content.map(Bytes),
        };
        Self {
            code,
            cause,
            stdout: std::mem::take(&mut outcome.stdout).into_bytes(),
            stderr: std::mem::take(&mut outcome.stderr).into_bytes(),
            notes: report.notes,
            files: std::mem::take(&mut outcome.files).into_iter().map(file).collect(),
            data,
        }
    }

    fn weight(&self) -> usize {
        let contents = self.files.iter().filter_map(|file| file.content.as_ref());
        let contents: usize = contents.map(|Bytes(content)| content.len()).sum();
        (self.stdout.len() + self.stderr.len() + contents) * 4 / 3
    }
}

/// The status and the cause of a failure, unless the exit code of the command alone says it.
fn cause_of_program(outcome: &Outcome, context: &Context<'_>) -> Option<String> {
    let cause = explain::cause(outcome, context)?;
    let is_plain_exit = matches!(outcome.end, Some(End::Code(code))
        if outcome.status == Status::Error && cause == format!("exit code {code}"));
    (!is_plain_exit).then(|| format!("{}: {cause}", outcome.status.as_str()))
}

impl FinishedStep {
    /// Describes a step of a session; nothing for a program.
    pub(super) fn new(ran: &mut Ran, config: &Config) -> Option<Self> {
        let RunEnd::Step { cell, .. } = &ran.end else { return None };
        // The user has seen the code and its output.
        let context = ran.context(config, Caller::Prompt, None);
        let context = Context { advice: None, sent: &[], ..context };
        let cause = cell::cause(explain::cause(&cell.outcome, &context), cell);
        let notes = explain::notes(&cell.outcome, &[], &context);
        let notes = ran.notes.iter().cloned().chain(notes).collect();
        let RunEnd::Step { cell, .. } = &mut ran.end else { return None };
        Some(Self::of_cell(cell, cause, notes))
    }

    fn of_cell(cell: &mut CellOutcome, cause: Option<String>, notes: Vec<String>) -> Self {
        let shown = std::mem::take(&mut cell.shown).into_iter();
        let shown = shown.map(|ShownThing { occasion, forms }| Shown {
            occasion,
            forms: forms.into_iter().map(|(kind, content)| (kind, Bytes(content))).collect(),
        });
        Self {
            cell: cell.cell,
            status: cell.outcome.status.as_str().to_owned(),
            code: cell.outcome.shell_code(),
            end: cell.outcome.end,
            cell_end: cell.end,
            cause,
            notes,
            stdout: Output::from(std::mem::take(&mut cell.outcome.stdout)),
            stderr: Output::from(std::mem::take(&mut cell.outcome.stderr)),
            shown: shown.collect(),
            shown_dropped: cell.shown_dropped,
            undone: cell.undone,
            undone_state: cell::undone(cell).filter(|_| cell.is_alive),
            no_checkpoint: cell.no_checkpoint,
            checkpoints: cell.checkpoints,
            background: std::mem::take(&mut cell.background),
            background_dropped: cell.background_dropped,
            is_alive: cell.is_alive,
            ms: ms(cell.outcome.wall),
            cpu_ms: ms(cell.outcome.cpu),
            peak_memory: cell.outcome.peak_memory,
        }
    }

    /// Whether it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.status != Status::Success.as_str()
    }

    fn weight(&self) -> usize {
        let output = [&self.stdout, &self.stderr].map(|it| it.head.len() + it.tail.len());
        let forms = self.shown.iter().flat_map(|thing| &thing.forms);
        let forms: usize = forms.map(|(_, Bytes(content))| content.len()).sum();
        (output.iter().sum::<usize>() + forms + self.background.len()) * 4 / 3
    }
}

impl From<Captured> for Output {
    fn from(Captured { head, tail, dropped }: Captured) -> Self {
        Self { head, tail, dropped }
    }
}

impl From<Output> for Captured {
    fn from(Output { head, tail, dropped }: Output) -> Self {
        Self { head, tail, dropped }
    }
}

impl Killed {
    pub(super) fn of(ran: &Result<CellOutcome, SessionError>) -> Self {
        match ran {
            Ok(cell) if cell.is_alive => {
                Self::Cell { number: cell.cell, undone: cell::undone(cell) }
            }
            Ok(_) | Err(SessionError::Ended(_)) => Self::Session,
            Err(_) => Self::Nothing,
        }
    }
}

/// Bytes in base64.
pub(super) mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        BASE64.decode(String::deserialize(from)?).map_err(de::Error::custom)
    }
}
