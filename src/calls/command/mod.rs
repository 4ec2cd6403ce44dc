//! Serves the calls of commands, in their own process or in a server: the same jobs as those of tools, with answers that have
//! everything that a command shows.

mod answer;
mod call;

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::WantedFiles;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{CellRun, Completed};
use isolator_pool::run::outcome::Status;
use tokio::sync::oneshot;

pub(crate) use self::answer::{
    Bytes, CommandAnswer, CommandError, Finished, FinishedFile, FinishedStep, Form, Killed,
    OpenedSession, Output, Piece, SessionLimits, Shown,
};
pub(crate) use self::call::{
    COMMAND, COMPLETE_CODE, CellOptions, CommandCall, OpenOptions, RunOptions,
};
use super::served::{Opened, Ran, Served};
use super::{Call, CallError, CallOutcome, Calls, Job};
use crate::audit::Note;
use crate::config::Config;
use crate::request::arguments::{
    Arguments, CompleteText, InvalidArgument, OneSession, OpenSession,
};
use crate::request::limits;
use crate::request::pack::{self, refuse_more_than_memory};
use crate::request::resolve::{self, StepJob};
use crate::result::receipt::ReceiptReport;
use crate::sessions::{self, InUse, Sessions};

/// How long a session can be without the call that holds it, which follows its opening at once.
const HELD_AFTER: Duration = Duration::from_secs(10);

/// How long names for a prompt may take: its user waits for them.
const MAX_COMPLETION: Duration = Duration::from_millis(500);

/// How often it is checked whether the cells that run have ended while the server stops.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// An answer, with what metrics and traces need of it.
pub(crate) struct CommandServed {
    /// The answer.
    pub answer: CommandAnswer,
    /// Its status.
    pub status: &'static str,
    /// Whether the call has run.
    pub outcome: CallOutcome,
    /// How its program was served, if one ran.
    pub receipt: Option<ReceiptReport>,
}

impl From<CommandAnswer> for CommandServed {
    fn from(answer: CommandAnswer) -> Self {
        Self { answer, status: "success", outcome: CallOutcome::Ran, receipt: None }
    }
}

/// A session that ends when this is dropped.
struct Held<'a> {
    sessions: &'a Sessions,
    session: Arc<sessions::OpenSession>,
    /// The user of this server can also hold it when there is no room for others. Clients can't: they share the room fairly.
    in_use: Option<InUse>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // An error means that it has ended by itself.
        let _ = self.sessions.close(&self.session.client, &self.session.id);
    }
}

impl Calls {
    /// Serves a call of a command. Dropping the future ends what runs, and a session that it holds.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub(crate) async fn serve_command(
        &self,
        command: CommandCall,
        call: &Call,
        note: &mut Note,
    ) -> Result<CommandServed, CallError> {
        let mut share = self.in_flight.share(&call.client);
        self.admit(&mut share, command.weight())?;
        match self.command(command, call, note).await {
            Err(error) => match (error.outcome(), error) {
                (outcome, CallError::SessionGone(gone) | CallError::SessionEnded(gone)) => {
                    let (answer, status) = (CommandAnswer::gone(&gone), "session_gone");
                    Ok(CommandServed { answer, status, outcome, receipt: None })
                }
                (outcome, CallError::Lost(lost)) => {
                    let (answer, status) = (CommandAnswer::lost(&lost), "session_gone");
                    Ok(CommandServed { answer, status, outcome, receipt: None })
                }
                (_, error) => Err(error),
            },
            served => served,
        }
    }

    async fn command(
        &self,
        command: CommandCall,
        call: &Call,
        note: &mut Note,
    ) -> Result<CommandServed, CallError> {
        let session = |named: OneSession| self.session_of_command(named.session, call);
        match command {
            CommandCall::Run(arguments, options) => {
                Box::pin(self.run_for_command(*arguments, options, call, note)).await
            }
            CommandCall::Open(arguments, options) => {
                Box::pin(self.open_for_command(*arguments, options, call, note)).await
            }
            CommandCall::Cell(arguments, options) => {
                let session = self.session_of_command(arguments.session.clone(), call)?;
                let job = self.cell_of_command(&session, *arguments, options, note)?;
                self.step_for_command(session, job, call, note).await
            }
            CommandCall::Shell(arguments) => {
                let session = self.session_of_command(arguments.session.clone(), call)?;
                note.code(arguments.command.as_deref());
                let job = resolve::command(*arguments, &session.language, &self.config)?;
                self.step_for_command(session, job, call, note).await
            }
            CommandCall::Rewind(arguments) => {
                let session = self.session_of_command(arguments.session, call)?;
                let cells = arguments.cells.and_then(|cells| u32::try_from(cells).ok());
                let job = Job::Rewind { session, cells: cells.unwrap_or(1) };
                match self.serve(job, call, note).await? {
                    Served::Rewound { undone, left, notes, .. } => {
                        let note = (!notes.is_empty()).then(|| notes.join("; "));
                        Ok(CommandAnswer::Rewound { undone, left, note }.into())
                    }
                    _ => unreachable!("cells are undone"),
                }
            }
            CommandCall::Complete(CompleteText { session, text }) => {
                let session = self.session_of_command(session, call)?;
                note.place(&session.language.name, Some(&session.id));
                let completed = session.session.complete(&text, MAX_COMPLETION).await;
                let completed =
                    completed.map_err(|error| CallError::of_session(error, &session))?;
                let Completed { start, names } = completed;
                Ok(CommandAnswer::Completed { start, names }.into())
            }
            CommandCall::Interrupt(named) => {
                Ok(CommandAnswer::Interrupted(session(named)?.session.interrupt()).into())
            }
            CommandCall::Kill(named) => {
                Ok(CommandAnswer::Interrupted(session(named)?.kill_step()).into())
            }
            CommandCall::Hold(named) => {
                self.hold(session(named)?).await;
                Ok(CommandAnswer::Closed.into())
            }
        }
    }

    async fn run_for_command(
        &self,
        arguments: Arguments,
        options: RunOptions,
        call: &Call,
        note: &mut Note,
    ) -> Result<CommandServed, CallError> {
        let RunOptions { files, stdin, max_wait_ms } = options;
        resolve::check_stdin(stdin.len(), &self.config)?;
        note.code(arguments.entrypoint_code.as_deref());
        note.snippet(arguments.snippet_name.as_deref());
        let mut job = resolve::program(arguments, &self.config, &self.snippets)?;
        refuse_more_than_memory(&job.run.workspace, &stdin, job.run.resources.memory)?;
        if !stdin.is_empty() {
            // The only one is that a snippet gets no input.
            job.notes.clear();
        }
        job.run.stdin = stdin;
        job.run.files = Some(wanted_files(files, &self.config));
        job.packages.awaits_dependencies = true;
        job.max_wait = max_wait_ms.map(Duration::from_millis);
        let Served::Ran(mut ran) = self.serve(Job::Program(Box::new(job)), call, note).await?
        else {
            unreachable!("a program is run")
        };
        let status = ran.outcome().status;
        if status == Status::Error && ran.language.kernel.is_some() {
            // Advice names the sets that are there.
            self.packages.look(&ran.language.name).await;
        }
        let finished = Box::new(Finished::new(&mut ran, &self.config, &self.packages));
        Ok(served(CommandAnswer::Finished(finished), *ran))
    }

    async fn open_for_command(
        &self,
        arguments: OpenSession,
        options: OpenOptions,
        call: &Call,
        note: &mut Note,
    ) -> Result<CommandServed, CallError> {
        let timeout = limits::timeout(options.timeout.as_deref(), &self.config.limits)?;
        let mut job = resolve::opening(arguments, &self.config)?;
        job.wish.idle_timeout = Some(HELD_AFTER);
        job.max_wait = options.max_wait_ms.map(Duration::from_millis);
        let Served::Opened(opened) = self.serve(Job::Open(Box::new(job)), call, note).await? else {
            unreachable!("a session is opened")
        };
        let Opened { session, receipt, notes, .. } = *opened;
        let (language, resources) = (&session.language, session.resources);
        let sandbox = &language.sandbox.limits;
        let output = self.config.output_with_kept();
        let limits = SessionLimits {
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            output: (output.head + output.tail) as u64,
            memory: resources.memory.as_bytes(),
            cpus: resources.cpu.as_cores(),
            processes: sandbox.pids.into(),
            workspace: sandbox.workspace.as_bytes(),
            files: sandbox.inodes.into(),
            checkpoints: match language.kernel {
                Some(Interpreter::Python) => self.config.sessions.checkpoints,
                Some(Interpreter::Node) | None => 0,
            },
        };
        let interpreter = session.session.opened().interpreter.clone();
        let opened = OpenedSession { session: session.id.clone(), interpreter, notes, limits };
        let answer = CommandAnswer::Opened(Box::new(opened));
        Ok(CommandServed { receipt: Some(receipt), ..CommandServed::from(answer) })
    }

    /// Resolves a cell. Without code, it only writes files.
    fn cell_of_command(
        &self,
        session: &InUse,
        arguments: Arguments,
        options: CellOptions,
        note: &mut Note,
    ) -> Result<StepJob, CallError> {
        let (config, language) = (&self.config, &session.language);
        let policies = session.policies(config);
        note.code(arguments.entrypoint_code.as_deref());
        if arguments.entrypoint_code.is_none() {
            let files = arguments.additional_files;
            return Ok(resolve::files(files, language, session.resources, policies, config)?);
        }
        let resources = session.resources;
        let mut job = resolve::cell(arguments, language, resources, policies, config)?;
        let CellOptions { columns: width, name, sent, for_program: is_for_program } = options;
        match &mut job.run.run {
            CellRun::Code { columns, for_program, .. } => {
                (*columns, *for_program) = (width, is_for_program);
            }
            CellRun::Program { argv, .. } => {
                let file = &language.default_file;
                let names: Vec<_> = [file].into_iter().cloned().chain(sent).collect();
                let sources = pack::sources(&names, language);
                *argv = language.argv(file, &sources, resources.memory);
            }
            CellRun::Files => {}
        }
        if let (Some(name), Some(source)) =
            (name, job.unchecked.iter_mut().find(|source| source.is_entrypoint))
        {
            source.name = name;
        }
        // A command has its own ways to list and fetch them.
        job.run.files = None;
        Ok(job)
    }

    async fn step_for_command(
        &self,
        session: InUse,
        mut job: StepJob,
        call: &Call,
        note: &mut Note,
    ) -> Result<CommandServed, CallError> {
        let (sender, ended) = oneshot::channel();
        job.on_end = Some(Box::new(move |ran| {
            // It is awaited only if the step is killed.
            let _ = sender.send(Killed::of(ran));
        }));
        let open = session.shared();
        let killable = open.begin_step();
        let job = Job::Step { session, job: Box::new(job), notes: Vec::new() };
        let ran = tokio::select! {
            ran = self.serve(job, call, note) => ran?,
            () = killable.killed() => {
                let killed = ended.await.unwrap_or(Killed::Nothing);
                return Ok(CommandServed { status: "killed", ..CommandAnswer::Killed(killed).into() });
            }
        };
        let Served::Ran(mut ran) = ran else { unreachable!("a step is run") };
        let Some(step) = FinishedStep::new(&mut ran, &self.config) else {
            unreachable!("a step is run in its session")
        };
        Ok(served(CommandAnswer::Step(Box::new(step)), *ran))
    }

    /// Keeps a session open until it ends or the server stops. It is closed then, and also when the command is gone, which drops
    /// this future.
    async fn hold(&self, in_use: InUse) {
        let session = in_use.shared();
        session.hold();
        let in_use = (session.client == Client::Host).then_some(in_use);
        let held = Held { sessions: &self.sessions, session, in_use };
        tokio::select! {
            _ = held.session.session.ended() => {}
            () = held.session.too_old(), if held.in_use.is_some() => {}
            () = self.sessions.released() => {
                while held.session.session.is_running() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }

    fn session_of_command(&self, handle: Option<String>, call: &Call) -> Result<InUse, CallError> {
        let handle =
            handle.ok_or_else(|| InvalidArgument::new("session", "is required: a handle"))?;
        let found = self.sessions.take(&call.client, &handle);
        found.map_err(|error| CallError::no_session(&handle, error))
    }
}

fn served(answer: CommandAnswer, ran: Ran) -> CommandServed {
    let status = ran.outcome().status.as_str();
    CommandServed { status, receipt: Some(ran.receipt), ..answer.into() }
}

/// The files that a sandbox sends: all or none. It lists them in either case.
fn wanted_files(is_wanted: bool, config: &Config) -> WantedFiles {
    match is_wanted {
        true => WantedFiles {
            globs: vec!["**".to_owned()],
            pictures: true,
            most: config.results.files.as_bytes(),
        },
        false => WantedFiles::default(),
    }
}
