//! Understands the arguments of a call: they become a job, whose every part was checked.

use isolator_pool::pool::admission::Client;

use super::budget::Share;
use super::{CallError, Calls, ToolName};
use crate::audit::Note;
use crate::request::arguments::{
    Arguments, CheckSyntax, InvalidArgument, OneSession, OpenSession, RewindSession, RunCommand,
    TestCode, required,
};
use crate::request::resolve::{self, OpenJob, ProgramJob, StepJob};
use crate::request::syntax::SyntaxJob;
use crate::request::understand::given::Given;
use crate::request::understand::{self, Notes, ToolArguments};
use crate::sessions::InUse;

/// A description of the handles that callers give.
const HANDLE: &str = "the handle that open_session returned";

/// Something to do for a caller.
pub(crate) enum Job {
    /// Run a program in a new sandbox.
    Program(Box<ProgramJob>),
    /// Check the syntax of a program.
    Syntax {
        job: Box<SyntaxJob>,
        /// The packages that the program would get. They change nothing about its syntax.
        packages: Vec<String>,
        /// An explanation if it is not valid.
        advice: Option<String>,
        notes: Vec<String>,
    },
    /// Open a session.
    Open(Box<OpenJob>),
    /// Run a cell or a shell command in a session.
    Step { session: InUse, job: Box<StepJob>, notes: Vec<String> },
    /// Undo cells of a session.
    Rewind { session: InUse, cells: u32 },
    /// Interrupt what runs in a session.
    Interrupt(InUse),
    /// End the session with this handle.
    Close(String),
}

/// Understands the arguments of one call.
pub(super) struct Understanding<'c> {
    /// The calls, with their configuration and sessions.
    pub(super) calls: &'c Calls,
    pub(super) client: &'c Client,
    /// The bytes of the call, which are taken from the budget for as long as this is held.
    pub(super) share: &'c mut Share,
    /// The line of the audit log.
    pub(super) note: &'c mut Note,
}

impl Understanding<'_> {
    /// Makes a job of the arguments.
    ///
    /// # Errors
    ///
    /// The first argument that can't be used, a session that is gone, or too many bytes.
    pub(super) fn job(mut self, tool: ToolName, arguments: Given) -> Result<Job, CallError> {
        match tool {
            ToolName::ExecuteCode => match understand::named_session(&arguments) {
                Some(handle) => self.cell(&handle, arguments),
                None => self.program(arguments),
            },
            ToolName::TestCode => self.test(arguments),
            ToolName::CheckSyntax => self.syntax(arguments),
            ToolName::OpenSession => self.opening(arguments),
            ToolName::RunCommand => self.command(arguments),
            ToolName::RewindSession => {
                let (RewindSession { session, cells }, _) = self.read(arguments)?;
                let handle = required(session, "session", HANDLE)?;
                let message = match cells.map(u32::try_from) {
                    Some(Ok(cells @ 1..)) => {
                        return Ok(Job::Rewind { session: self.session(&handle)?, cells });
                    }
                    Some(_) => "must be a whole number from 1",
                    None => "is required: how many cells to undo, at least 1",
                };
                Err(InvalidArgument::new("cells", message).into())
            }
            ToolName::InterruptSession => {
                let handle = self.handle(arguments)?;
                Ok(Job::Interrupt(self.session(&handle)?))
            }
            ToolName::CloseSession => Ok(Job::Close(self.handle(arguments)?)),
            ToolName::GetResult => Err(InvalidArgument::no_such_run().into()),
        }
    }

    fn program(&mut self, arguments: Given) -> Result<Job, CallError> {
        let (arguments, notes) = self.read::<Arguments>(arguments)?;
        // Its cell would be lost with a sandbox of its own.
        if arguments.session.is_some() {
            let message = "was not understood; give it as session, next to entrypoint_code";
            return Err(InvalidArgument::new("session", message).into());
        }
        self.note.code(arguments.entrypoint_code.as_deref());
        self.note.snippet(arguments.snippet_name.as_deref());
        self.admit(arguments.weight())?;
        let job = resolve::program(arguments, &self.calls.config, &self.calls.snippets);
        let mut job = job.map_err(|error| notes.explain(error))?;
        job.notes.splice(..0, notes.into_texts());
        Ok(Job::Program(Box::new(job)))
    }

    fn test(&mut self, arguments: Given) -> Result<Job, CallError> {
        let config = &self.calls.config;
        let Some(language) = &config.test_code else {
            return Err(InvalidArgument::new("name", "there is no tool test_code").into());
        };
        self.note.place(&language.name, None);
        let (arguments, notes) = self.read::<TestCode>(arguments)?;
        self.note.code(arguments.code.as_deref());
        self.admit(arguments.code.as_ref().map_or(0, String::len))?;
        let job = resolve::test(arguments, language, config);
        let mut job = job.map_err(|error| notes.explain(error))?;
        job.notes = notes.into_texts();
        Ok(Job::Program(Box::new(job)))
    }

    fn syntax(&mut self, arguments: Given) -> Result<Job, CallError> {
        let (CheckSyntax { language, code, packages }, notes) = self.read(arguments)?;
        let language = required(language, "language", "the language of the code")?;
        let code = required(code, "code", "the source of the program")?;
        self.note.code(Some(&code));
        self.admit(code.len())?;
        let language = resolve::language(&language, &self.calls.config)?;
        let advice = understand::advice(&code, &language).map(|advice| advice.text);
        let job = Box::new(SyntaxJob::new(&language, code, &self.calls.config)?);
        Ok(Job::Syntax { job, packages, advice, notes: notes.into_texts() })
    }

    fn opening(&mut self, arguments: Given) -> Result<Job, CallError> {
        let (arguments, notes) = self.read::<OpenSession>(arguments)?;
        self.admit(arguments.weight())?;
        let job = resolve::opening(arguments, &self.calls.config);
        let mut job = job.map_err(|error| notes.explain(error))?;
        job.notes = notes.into_texts();
        Ok(Job::Open(Box::new(job)))
    }

    fn cell(&mut self, handle: &str, arguments: Given) -> Result<Job, CallError> {
        if !self.calls.has_sessions() {
            return Err(InvalidArgument::new("session", "this server offers no sessions").into());
        }
        let session = self.session(handle)?;
        let (language, config) = (&session.language, &self.calls.config);
        self.note.place(&language.name, Some(handle));
        let (arguments, notes) = understand::read_cell(arguments, &language.name, config)?;
        self.note.code(arguments.entrypoint_code.as_deref());
        self.admit(arguments.weight())?;
        let policies = session.policies(config);
        let job = resolve::cell(arguments, language, session.resources, policies, config);
        let job = Box::new(job.map_err(|error| notes.explain(error))?);
        Ok(Job::Step { session, job, notes: notes.into_texts() })
    }

    fn command(&mut self, arguments: Given) -> Result<Job, CallError> {
        let (arguments, notes) = self.read::<RunCommand>(arguments)?;
        let handle = required(arguments.session.clone(), "session", HANDLE)?;
        let session = self.session(&handle)?;
        self.note.place(&session.language.name, Some(&handle));
        self.note.code(arguments.command.as_deref());
        self.admit(arguments.weight())?;
        let job = resolve::command(arguments, &session.language, &self.calls.config);
        let job = Box::new(job.map_err(|error| notes.explain(error))?);
        Ok(Job::Step { session, job, notes: notes.into_texts() })
    }

    fn read<T: ToolArguments>(&self, arguments: Given) -> Result<(T, Notes), InvalidArgument> {
        understand::read(arguments, &self.calls.config)
    }

    /// The handle in the arguments of a tool that takes nothing else.
    fn handle(&self, arguments: Given) -> Result<String, InvalidArgument> {
        let (OneSession { session }, _) = self.read(arguments)?;
        required(session, "session", HANDLE)
    }

    fn session(&self, handle: &str) -> Result<InUse, CallError> {
        let found = self.calls.sessions.take(self.client, handle);
        found.map_err(|error| CallError::no_session(handle, error))
    }

    fn admit(&mut self, bytes: usize) -> Result<(), CallError> {
        self.calls.admit(self.share, bytes)
    }
}

impl Job {
    /// Notes its place, limits and files for the audit log.
    pub(super) fn note(&self, note: &mut Note) {
        match self {
            Self::Program(job) => {
                note.place(&job.language.name, None);
                note.limits(job.run.timeout, job.run.resources);
                note.files(job.run.workspace.files());
            }
            Self::Syntax { job, .. } => note.place(&job.language.name, None),
            Self::Step { session, job, .. } => {
                note.place(&session.language.name, Some(&session.id));
                note.limits(job.run.timeout, session.resources);
                note.files(job.sent());
            }
            // The handle is not known yet.
            Self::Open(_) | Self::Rewind { .. } | Self::Interrupt(_) | Self::Close(_) => {}
        }
    }
}
