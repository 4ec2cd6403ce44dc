//! Runs cells and commands in a session, and shows what comes of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::session::NoCheckpoint;
use isolator_pool::quote::escaped;
use isolator_pool::run::output::Stream;
use tokio::sync::mpsc;

use super::directive::{self, Typed};
use super::json;
use super::record::Record;
use super::screen::{Screen, columns};
use super::setup::Setup;
use super::shown::Gallery;
use crate::calls::command::{
    Bytes, CellOptions, CommandAnswer, CommandCall, CommandError, Killed, OpenedSession, Piece,
    SessionLimits,
};
use crate::commands::backend::{Backend, CallFailure};
use crate::commands::server::OnPiece;
use crate::commands::signals::Interrupts;
use crate::config::Config;
use crate::duration;
use crate::request::arguments::{Arguments, OneSession, RewindSession, RunCommand};
use crate::request::options::with_options;

mod completing;
mod files;
mod show;

/// A second Ctrl-C within this time kills the cell.
const SECOND_WITHIN: Duration = Duration::from_secs(1);

/// The exit code after Ctrl-C, as shells have it.
pub(super) const INTERRUPTED: i32 = 128 + libc::SIGINT;

/// The exit code of a session whose sandbox was killed, and of what failed on our side.
const KILLED: i32 = 128 + libc::SIGKILL;
const FAILED: i32 = 125;

/// How output is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) is_json: bool,
    pub(super) is_quiet: bool,
    pub(super) is_interactive: bool,
    /// Whether the cells are those of a file.
    pub(super) is_of_file: bool,
    /// Whether piped cells run after one that failed.
    pub(super) keeps_going: bool,
}

/// The consequence of a cell or a command for the ones after it, with the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Fine,
    Failed(i32),
    /// The cell has asked to exit. Nothing else is run, as in a program.
    Exited(i32),
    /// No more can be run.
    Over(i32),
}

/// The end of something that was run.
enum Ran {
    Answer(CommandAnswer),
    Failed(CallFailure),
    /// The user has pressed Ctrl-C once more while it was killed.
    Abandoned,
}

/// Output that was passed on while a cell ran, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Followed {
    stdout: usize,
    stderr: usize,
}

/// A session with its user.
pub(super) struct Console<'a> {
    config: &'a Config,
    setup: &'a Setup,
    backend: Backend<'a>,
    opened: OpenedSession,
    pub(super) screen: Screen,
    gallery: Gallery,
    interrupts: Interrupts,
    /// Whether Ctrl-C was pressed while the last cell ran.
    was_interrupted: bool,
    /// Names of all files that were sent.
    sent: Vec<String>,
    style: Style,
    /// Cells so far.
    cells: u32,
    followed: Followed,
    /// The record of the cell, if one is kept.
    record: Option<Record>,
    /// Why there was no checkpoint, as it was said last.
    no_checkpoint: Option<NoCheckpoint>,
}

impl<'a> Console<'a> {
    /// For a session that was opened with these files.
    pub(super) fn new(
        config: &'a Config,
        setup: &'a Setup,
        backend: Backend<'a>,
        opened: OpenedSession,
        sent: Vec<String>,
        interrupts: Interrupts,
        style: Style,
    ) -> Self {
        Self {
            config,
            setup,
            backend,
            opened,
            screen: Screen::new(),
            gallery: Gallery::default(),
            interrupts,
            was_interrupted: false,
            sent,
            style,
            cells: 0,
            followed: Followed::default(),
            record: None,
            no_checkpoint: None,
        }
    }

    /// The name and version of the interpreter.
    pub(super) fn interpreter(&self) -> Option<&str> {
        self.opened.interpreter.as_deref()
    }

    /// The number of the next cell.
    pub(super) const fn next_cell(&self) -> u32 {
        self.cells + 1
    }

    /// Waits for Ctrl-C.
    pub(super) async fn interrupted(&mut self) {
        self.interrupts.next().await;
    }

    /// Whether Ctrl-C was pressed since the last cell of a file began. Whoever presses it means the run, and no tag or option says
    /// that it goes on then.
    pub(super) fn is_run_interrupted(&mut self) -> bool {
        self.was_interrupted |= self.interrupts.take();
        self.style.is_of_file && self.was_interrupted
    }

    /// Keeps a record of the next cell.
    pub(super) fn record(&mut self) {
        self.record = Some(Record::default());
    }

    /// The record of the cell that has run.
    pub(super) fn recorded(&mut self) -> Option<Record> {
        self.record.take()
    }

    /// Does what was typed.
    ///
    /// # Errors
    ///
    /// When the output can't be written.
    pub(super) async fn obey(&mut self, input: &str) -> anyhow::Result<After> {
        let typed = match directive::read(input) {
            Ok(typed) => typed,
            Err(error) => {
                self.screen.remark(&error).await?;
                return Ok(After::Failed(1));
            }
        };
        let done = match typed {
            Typed::Nothing => Ok(After::Fine),
            Typed::Code(code) => return self.run_code(code).await,
            Typed::Shell(command) => return self.run_command(command).await,
            Typed::Quit => Ok(After::Over(0)),
            Typed::Help => {
                let has_blocks = self.has_blocks();
                self.screen.say(Stream::Stdout, &directive::help(has_blocks)).await?;
                Ok(After::Fine)
            }
            Typed::Limits => {
                let limits = self.limits();
                self.screen.say(Stream::Stdout, &limits).await?;
                Ok(After::Fine)
            }
            Typed::Rewind(cells) => self.rewind(cells).await,
            Typed::Run(file) => match self.read_code(&file) {
                Ok(code) => return self.run_code(code).await,
                Err(error) => Err(error),
            },
            Typed::Files => self.list().await,
            Typed::Get { path, to } => self.get(&path, to.as_deref()).await,
            Typed::Put(argument) => self.put(&argument).await,
            Typed::Save { number, to } => match self.gallery.save(number, to.as_deref()) {
                Ok(path) => {
                    self.screen.say(Stream::Stdout, &format!("wrote {}", path.display())).await?;
                    Ok(After::Fine)
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(after) => Ok(after),
            Err(error) => {
                self.screen.remark(&crate::commands::describe(&error)).await?;
                Ok(After::Failed(1))
            }
        }
    }

    fn has_blocks(&self) -> bool {
        self.setup.language.kernel == Some(Interpreter::Python)
    }

    fn session(&self) -> Option<String> {
        Some(self.opened.session.clone())
    }

    /// Runs a cell of code.
    ///
    /// # Errors
    ///
    /// When the output can't be written.
    pub(super) async fn run_code(&mut self, code: String) -> anyhow::Result<After> {
        let Setup { language, timeout, .. } = self.setup;
        let name = self.setup.cell_name(self.next_cell());
        let arguments = Arguments {
            session: self.session(),
            entrypoint_code: Some(code),
            // Cells of JavaScript and TypeScript differ in it.
            entrypoint_filename: (language.kernel == Some(Interpreter::Node)).then(|| name.clone()),
            timeout: timeout.clone(),
            ..Arguments::default()
        };
        let options = CellOptions {
            columns: self.style.is_interactive.then(columns),
            name: language.kernel.is_some().then_some(name),
            sent: self.sent.clone(),
            for_program: self.record.is_some(),
        };
        self.run(CommandCall::Cell(Box::new(arguments), options)).await
    }

    /// Runs a command in a shell of the sandbox.
    async fn run_command(&mut self, command: String) -> anyhow::Result<After> {
        let arguments = RunCommand {
            session: self.session(),
            command: Some(command),
            timeout: self.setup.timeout.clone(),
            ..RunCommand::default()
        };
        self.run(CommandCall::Shell(Box::new(arguments))).await
    }

    async fn run(&mut self, call: CommandCall) -> anyhow::Result<After> {
        match self.drive(call).await? {
            Ran::Answer(CommandAnswer::Step(step)) => self.show(*step).await,
            ran => self.not_finished(ran).await,
        }
    }

    /// Tells why something that was run has no end of its own.
    async fn not_finished(&mut self, ran: Ran) -> anyhow::Result<After> {
        match ran {
            Ran::Answer(CommandAnswer::Killed(killed)) => self.after_kill(killed).await,
            Ran::Answer(CommandAnswer::SessionGone { why, is_by_program }) => {
                self.over(&why, is_by_program).await
            }
            Ran::Answer(other) => {
                self.not_run("error", &format!("this is an unexpected answer: {other:?}")).await
            }
            Ran::Failed(error) => {
                let status = match &error {
                    CallFailure::Command(CommandError::Refused { .. }) => "refused",
                    CallFailure::Command(_) | CallFailure::Request(_) => "error",
                };
                self.not_run(status, &explain(error)).await
            }
            Ran::Abandoned => Ok(After::Over(INTERRUPTED)),
        }
    }

    /// Runs something, passes on what it prints, and lets Ctrl-C interrupt it.
    async fn drive(&mut self, call: CommandCall) -> anyhow::Result<Ran> {
        let (printing, mut printed) = mpsc::unbounded_channel();
        let on_piece: Option<Arc<OnPiece>> = if self.style.is_json {
            None
        } else {
            // It is not read anymore once the cell was killed.
            Some(Arc::new(move |piece| drop(printing.send(piece))))
        };
        self.followed = Followed::default();
        self.was_interrupted = false;
        // One that came too late.
        self.interrupts.take();
        let backend = self.backend;
        let mut running = Box::pin(backend.call(call, on_piece));
        let mut last: Option<Instant> = None;
        let ran = loop {
            tokio::select! {
                biased;
                Some(piece) = printed.recv() => self.pass_on(piece).await?,
                ran = &mut running => break ran,
                () = self.interrupts.next() => {
                    self.was_interrupted = true;
                    let one = OneSession { session: self.session() };
                    let is_second = last.is_some_and(|at| at.elapsed() < SECOND_WITHIN);
                    if !is_second && self.has_stopped(CommandCall::Interrupt(one.clone())).await {
                        last = Some(Instant::now());
                        continue;
                    }
                    if self.has_stopped(CommandCall::Kill(one)).await {
                        tokio::select! {
                            ran = running => break ran,
                            () = self.interrupts.next() => return Ok(Ran::Abandoned),
                        }
                    }
                    return Ok(Ran::Answer(CommandAnswer::Killed(Killed::Nothing)));
                }
            }
        };
        while let Ok(piece) = printed.try_recv() {
            self.pass_on(piece).await?;
        }
        Ok(match ran {
            Ok(answer) => Ran::Answer(answer),
            Err(error) => Ran::Failed(error),
        })
    }

    /// Interrupts or kills what runs. Returns whether something did. Ctrl-C ends the wait for an answer.
    async fn has_stopped(&mut self, call: CommandCall) -> bool {
        tokio::select! {
            answer = self.backend.call(call, None) => {
                matches!(answer, Ok(CommandAnswer::Interrupted(true)))
            }
            () = self.interrupts.next() => false,
        }
    }

    async fn pass_on(&mut self, piece: Piece) -> anyhow::Result<()> {
        match piece {
            Piece::Stdout(Bytes(bytes)) => {
                self.followed.stdout += bytes.len();
                self.print(Stream::Stdout, &bytes).await
            }
            Piece::Stderr(Bytes(bytes)) => {
                self.followed.stderr += bytes.len();
                self.print(Stream::Stderr, &bytes).await
            }
            Piece::Step(_) => Ok(()),
        }
    }

    /// Prints what a program printed, and notes it in the record.
    async fn print(&mut self, stream: Stream, bytes: &[u8]) -> anyhow::Result<()> {
        if let Some(record) = &mut self.record {
            record.print(stream, bytes);
        }
        self.screen.pass_on(stream, bytes).await
    }

    /// Tells that something did not run.
    async fn not_run(&mut self, status: &str, why: &str) -> anyhow::Result<After> {
        self.tell(self.next_cell(), status, why, true).await?;
        Ok(After::Failed(FAILED))
    }

    /// Tells what became of the session after a cell was killed.
    async fn after_kill(&mut self, killed: Killed) -> anyhow::Result<After> {
        let (number, why) = match killed {
            Killed::Nothing => (self.next_cell(), "it was cancelled before it began".to_owned()),
            Killed::Cell { number, undone } => {
                self.cells = number;
                (number, state_after_kill(undone))
            }
            Killed::Session => {
                let why = "the cell was killed, and the session with it: there was no checkpoint to go back to";
                return self.over_because(why, INTERRUPTED).await;
            }
        };
        self.tell(number, "killed", &why, true).await?;
        Ok(if self.style.is_interactive {
            After::Failed(INTERRUPTED)
        } else {
            After::Over(INTERRUPTED)
        })
    }

    /// Tells that the session is gone.
    async fn over(&mut self, why: &str, is_by_program: bool) -> anyhow::Result<After> {
        let code = if is_by_program { KILLED } else { FAILED };
        self.over_because(&format!("the session has ended: {why}"), code).await
    }

    async fn over_because(&mut self, why: &str, code: i32) -> anyhow::Result<After> {
        self.tell(self.next_cell(), "killed", why, false).await?;
        Ok(After::Over(code))
    }

    async fn tell(
        &mut self,
        cell: u32,
        status: &str,
        why: &str,
        is_alive: bool,
    ) -> anyhow::Result<()> {
        if let Some(record) = &mut self.record {
            record.fail(status, why);
        }
        match self.style.is_json {
            true => self.screen.line(&json::not_run(cell, status, why, is_alive)?).await,
            false => self.screen.remark(why).await,
        }
    }

    async fn rewind(&mut self, cells: u32) -> anyhow::Result<After> {
        let arguments = RewindSession { session: self.session(), cells: Some(cells.into()) };
        match self.backend.call(CommandCall::Rewind(arguments), None).await {
            Ok(CommandAnswer::Rewound { undone, left, note }) => {
                let mut text =
                    format!("undid {}; {} more can be undone", cells_of(undone), cells_of(left));
                if let Some(note) = note {
                    text.push_str(&format!("; {note}"));
                }
                self.screen.say(Stream::Stdout, &text).await?;
                Ok(After::Fine)
            }
            Ok(CommandAnswer::SessionGone { why, is_by_program }) => {
                self.over(&why, is_by_program).await
            }
            Ok(other) => anyhow::bail!("this is an unexpected answer: {other:?}"),
            Err(error) => anyhow::bail!(explain(error)),
        }
    }

    fn limits(&self) -> String {
        let SessionLimits {
            timeout_ms,
            output,
            memory,
            cpus,
            processes,
            workspace,
            files,
            checkpoints,
        } = self.opened.limits;
        format!(
            "a cell: {} of run time (--timeout); output of {} is shown\n\
             the session: {} of memory with its files (--memory), {cpus} cores (--cpus), {processes} processes and threads\n\
             its files: {} and {files} files\n\
             what can be undone: {checkpoints} cells at most",
            duration::shown(Duration::from_millis(timeout_ms)),
            rounded(output),
            ByteSize::bytes(memory),
            ByteSize::bytes(workspace),
        )
    }
}

/// An error in the words of the prompt. An argument that is to blame is the cell itself.
fn explain(error: CallFailure) -> String {
    match error {
        CallFailure::Command(CommandError::Invalid { message, .. }) => with_options(&message),
        error => error.to_string(),
    }
}

/// An amount of memory in a usual unit.
fn rounded(bytes: u64) -> ByteSize {
    const UNITS: [u64; 2] = [1 << 20, 1 << 10];
    let unit = UNITS.into_iter().find(|unit| bytes >= *unit).unwrap_or(1);
    ByteSize::bytes(bytes / unit * unit)
}

/// A description of something that was killed. `undone` says what was undone with it.
fn state_after_kill(undone: Option<String>) -> String {
    match undone {
        // Without a checkpoint it is interrupted first, and a command is not undone.
        None => "it was stopped; what it did until then stays".to_owned(),
        Some(undone) => format!("it was killed; {}", escaped(&undone)),
    }
}

fn cells_of(count: u32) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}
