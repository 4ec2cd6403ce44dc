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
use crate::request::understand::{self, given::Given};
use crate::sessions::InUse;

/// A description of the handles that callers give.
const HANDLE: &str = "the handle that open_session returned";

/// Something to do for a caller.
pub(crate) enum Job {
    /// Run a program in a new sandbox.
    Program(Box<ProgramJob>),
    /// Check the syntax of a program.
    Syntax {
        /// The check.
        job: Box<SyntaxJob>,
        /// The packages that the program would get. They change nothing about its syntax.
        packages: Vec<String>,
        /// An explanation if it is not valid.
        advice: Option<String>,
        /// Remarks for the caller.
        notes: Vec<String>,
    },
    /// Open a session.
    Open(Box<OpenJob>),
    /// Run a cell or a shell command in a session.
    Step {
        /// The session.
        session: InUse,
        /// The step.
        job: Box<StepJob>,
        /// Remarks for the caller.
        notes: Vec<String>,
    },
    /// Undo cells of a session.
    Rewind {
        /// The session.
        session: InUse,
        /// How many cells.
        cells: u32,
    },
    /// Interrupt what runs in a session.
    Interrupt(InUse),
    /// End the session with this handle.
    Close(String),
}

impl Calls {
    /// Understands the arguments of a call. Its bytes are taken from the budget for as long as `share` is held.
    ///
    /// # Errors
    ///
    /// The first argument that can't be used, a session that is gone, or too many bytes.
    pub(super) fn understand(
        &self,
        tool: ToolName,
        arguments: Given,
        client: &Client,
        share: &mut Share,
        note: &mut Note,
    ) -> Result<Job, CallError> {
        match tool {
            ToolName::ExecuteCode => match understand::named_session(&arguments) {
                Some(handle) => self.cell(&handle, arguments, client, share, note),
                None => self.program(arguments, share, note),
            },
            ToolName::TestCode => self.test(arguments, share, note),
            ToolName::CheckSyntax => self.syntax(arguments, share, note),
            ToolName::OpenSession => {
                let (arguments, notes) = understand::read::<OpenSession>(arguments, &self.config)?;
                self.admit(share, arguments.weight())?;
                let job = resolve::opening(arguments, &self.config);
                let mut job = job.map_err(|error| notes.explain(error))?;
                job.notes.splice(..0, notes.into_texts());
                Ok(Job::Open(Box::new(job)))
            }
            ToolName::RunCommand => self.command(arguments, client, share, note),
            ToolName::RewindSession => {
                let (RewindSession { session, cells }, _) =
                    understand::read(arguments, &self.config)?;
                let handle = required(session, "session", HANDLE)?;
                let cells = match cells.map(u32::try_from) {
                    Some(Ok(cells @ 1..)) => cells,
                    Some(_) => {
                        return Err(
                            InvalidArgument::new("cells", "must be a whole number from 1").into()
                        );
                    }
                    None => {
                        let message = "is required: how many cells to undo, at least 1";
                        return Err(InvalidArgument::new("cells", message).into());
                    }
                };
                Ok(Job::Rewind { session: self.session(client, &handle)?, cells })
            }
            ToolName::InterruptSession => {
                let handle = self.handle(arguments)?;
                Ok(Job::Interrupt(self.session(client, &handle)?))
            }
            ToolName::CloseSession => Ok(Job::Close(self.handle(arguments)?)),
            ToolName::GetResult => Err(InvalidArgument::no_such_run().into()),
        }
    }

    fn program(
        &self,
        arguments: Given,
        share: &mut Share,
        note: &mut Note,
    ) -> Result<Job, CallError> {
        let (arguments, notes) = understand::read::<Arguments>(arguments, &self.config)?;
        // Its cell would be lost with a sandbox of its own.
        if arguments.session.is_some() {
            let message = "was not understood; give it as session, beside entrypoint_code";
            return Err(InvalidArgument::new("session", message).into());
        }
        if let Some(code) = &arguments.entrypoint_code {
            note.code(code);
        }
        if let Some(snippet) = &arguments.snippet_name {
            note.snippet(snippet);
        }
        self.admit(share, arguments.weight())?;
        let job = resolve::program(arguments, &self.config, &self.snippets);
        let mut job = job.map_err(|error| notes.explain(error))?;
        job.notes.splice(..0, notes.into_texts());
        Ok(Job::Program(Box::new(job)))
    }

    fn test(&self, arguments: Given, share: &mut Share, note: &mut Note) -> Result<Job, CallError> {
        let Some(language) = &self.config.test_code else {
            return Err(InvalidArgument::new("name", "there is no tool test_code").into());
        };
        note.place(&language.name, None);
        let (arguments, notes) = understand::read::<TestCode>(arguments, &self.config)?;
        if let Some(code) = &arguments.code {
            note.code(code);
        }
        self.admit(share, arguments.code.as_ref().map_or(0, String::len))?;
        let job = resolve::test(arguments, language, &self.config);
        let mut job = job.map_err(|error| notes.explain(error))?;
        job.notes = notes.into_texts();
        Ok(Job::Program(Box::new(job)))
    }

    fn syntax(
        &self,
        arguments: Given,
        share: &mut Share,
        note: &mut Note,
    ) -> Result<Job, CallError> {
        let (arguments, notes) = understand::read(arguments, &self.config)?;
        let CheckSyntax { language, code, packages } = arguments;
        let language = required(language, "language", "the language of the code")?;
        let code = required(code, "code", "the source of the program")?;
        note.code(&code);
        self.admit(share, code.len())?;
        let language = resolve::language(&language, &self.config)?;
        let advice = understand::advice(&code, &language).map(|advice| advice.text);
        let job = Box::new(SyntaxJob::new(&language, code, &self.config)?);
        Ok(Job::Syntax { job, packages, advice, notes: notes.into_texts() })
    }

    fn cell(
        &self,
        handle: &str,
        arguments: Given,
        client: &Client,
        share: &mut Share,
        note: &mut Note,
    ) -> Result<Job, CallError> {
        if !self.has_sessions() {
            return Err(InvalidArgument::new("session", "this server offers no sessions").into());
        }
        let session = self.session(client, handle)?;
        note.place(&session.language.name, Some(handle));
        let (arguments, notes) =
            understand::read_cell(arguments, &session.language.name, &self.config)?;
        if let Some(code) = &arguments.entrypoint_code {
            note.code(code);
        }
        self.admit(share, arguments.weight())?;
        let (language, resources) = (&session.language, session.resources);
        let policies = session.policies(&self.config);
        let job = resolve::cell(arguments, language, resources, policies, &self.config);
        let job = Box::new(job.map_err(|error| notes.explain(error))?);
        Ok(Job::Step { session, job, notes: notes.into_texts() })
    }

    fn command(
        &self,
        arguments: Given,
        client: &Client,
        share: &mut Share,
        note: &mut Note,
    ) -> Result<Job, CallError> {
        let (arguments, notes) = understand::read::<RunCommand>(arguments, &self.config)?;
        let handle = required(arguments.session.clone(), "session", HANDLE)?;
        let session = self.session(client, &handle)?;
        note.place(&session.language.name, Some(&handle));
        if let Some(command) = &arguments.command {
            note.code(command);
        }
        self.admit(share, arguments.weight())?;
        let job = resolve::command(arguments, &session.language, &self.config);
        let job = Box::new(job.map_err(|error| notes.explain(error))?);
        Ok(Job::Step { session, job, notes: notes.into_texts() })
    }

    /// The handle in the arguments of a tool that takes nothing else.
    fn handle(&self, arguments: Given) -> Result<String, CallError> {
        let (OneSession { session }, _) = understand::read(arguments, &self.config)?;
        Ok(required(session, "session", HANDLE)?)
    }

    fn session(&self, client: &Client, handle: &str) -> Result<InUse, CallError> {
        self.sessions.take(client, handle).map_err(|error| CallError::no_session(handle, error))
    }

    fn admit(&self, share: &mut Share, bytes: usize) -> Result<(), CallError> {
        match share.grow(bytes) {
            true => Ok(()),
            false => Err(CallError::TooMuchAtOnce(self.config.requests.max_in_flight.as_usize())),
        }
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
