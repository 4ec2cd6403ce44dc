//! Runs cells and commands in a session, and shows what comes of them.

use std::time::{Duration, Instant};

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{
    CellOutcome, CellRequest, CellRun, EndReason, NoCheckpoint, Session, SessionError,
};
use isolator_pool::run::output::{Stream, Watch};
use isolator_pool::run::workspace::Workspace;
use tokio::sync::{mpsc, oneshot};

use super::directive::{self, Typed};
use super::json;
use super::screen::{Screen, columns};
use super::setup::{Pending, Setup};
use super::shown::Gallery;
use crate::commands::options::in_words_of_options;
use crate::commands::signals::Interrupts;
use crate::config::Config;
use crate::duration;
use crate::policy::SourceFile;
use crate::request::pack::{self, refuse_more_than_memory};

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
    /// Whether piped cells run after one that failed.
    pub(super) keeps_going: bool,
}

/// What a cell or a command means for the ones after it, with the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Fine,
    Failed(i32),
    /// No more can be run.
    Over(i32),
}

/// What became of something that was run.
enum Ran {
    Outcome(Box<CellOutcome>),
    Failed(SessionError),
    /// The user did not want to wait for its end, of which is told here. If it did not begin, nothing is.
    Killed(oneshot::Receiver<Killed>),
}

/// What became of something that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// It did not run.
    Nothing,
    /// The session goes on, but so many of its cells were undone.
    Cell { number: u32, undone: u32 },
    /// The session has ended with it.
    Session,
}

impl Killed {
    fn of(ran: &Result<CellOutcome, SessionError>) -> Self {
        match ran {
            Ok(cell) if cell.is_alive => Self::Cell { number: cell.cell, undone: cell.undone },
            Ok(_) | Err(SessionError::Ended(_)) => Self::Session,
            Err(_) => Self::Nothing,
        }
    }
}

/// A session with its user.
pub(super) struct Console<'a> {
    config: &'a Config,
    setup: &'a Setup,
    session: Session,
    pub(super) screen: Screen,
    gallery: Gallery,
    interrupts: Interrupts,
    pending: Pending,
    /// Names of all files that were sent.
    sent: Vec<String>,
    style: Style,
    /// Cells so far.
    cells: u32,
    /// Why there was no checkpoint, as it was said last.
    no_checkpoint: Option<NoCheckpoint>,
}

impl<'a> Console<'a> {
    pub(super) fn new(
        config: &'a Config,
        setup: &'a Setup,
        session: Session,
        pending: Pending,
        interrupts: Interrupts,
        style: Style,
    ) -> Self {
        Self {
            config,
            setup,
            session,
            screen: Screen::new(),
            gallery: Gallery::default(),
            interrupts,
            pending,
            sent: Vec::new(),
            style,
            cells: 0,
            no_checkpoint: None,
        }
    }

    /// What the interpreter says it is.
    pub(super) fn interpreter(&self) -> Option<&str> {
        self.session.opened().interpreter.as_deref()
    }

    /// The number of the next cell.
    pub(super) const fn next_cell(&self) -> u32 {
        self.cells + 1
    }

    /// Waits for Ctrl-C.
    pub(super) async fn interrupted(&mut self) {
        self.interrupts.next().await;
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
                self.screen.remark(&crate::commands::told(&error)).await?;
                Ok(After::Failed(1))
            }
        }
    }

    fn has_blocks(&self) -> bool {
        use isolator_pool::engine::preload::Interpreter;
        self.setup.language.kernel == Some(Interpreter::Python)
    }

    /// Runs a cell of code.
    ///
    /// # Errors
    ///
    /// When the output can't be written.
    pub(super) async fn run_code(&mut self, code: String) -> anyhow::Result<After> {
        let number = self.next_cell();
        let language = &self.setup.language;
        let mut unchecked = self.pending.unchecked.clone();
        if self.config.policies.apply_to(&language.name) {
            let (name, content) = (self.setup.cell_name(number), code.clone().into_bytes());
            unchecked.insert(0, SourceFile { name, content, is_entrypoint: true });
        }
        let checked = self.config.policies.check(&language.name, unchecked, &Client::Host).await;
        let found = match checked {
            Ok(found) => found,
            Err(error) => return self.not_run("error", &error.to_string()).await,
        };
        if !found.is_empty() {
            let name = &language.name;
            let why =
                format!("the policy for {name} forbids something, so it was not run:\n{found}");
            return self.not_run("refused", &why).await;
        }
        let (run, input) = if language.kernel.is_some() {
            let columns = self.style.is_interactive.then(columns);
            let run = CellRun::Code { typescript: self.setup.typescript, columns };
            (run, code.into_bytes())
        } else {
            let file = &language.default_file;
            if let Err(error) = self.pending.files.add(file, code.into_bytes()) {
                return self.not_run("error", &error.to_string()).await;
            }
            let sent = self.sent.iter().chain(&self.pending.names).cloned();
            let names: Vec<_> = std::iter::once(file.clone()).chain(sent).collect();
            let sources = pack::sources(&names, language);
            let argv = language.argv(file, &sources, self.setup.resources.memory);
            (self.program(argv), Vec::new())
        };
        self.run(run, input).await
    }

    /// Runs a command in a shell of the sandbox.
    async fn run_command(&mut self, command: String) -> anyhow::Result<After> {
        let run = self.program(vec!["sh".to_owned(), "-c".to_owned(), command]);
        self.run(run, Vec::new()).await
    }

    fn program(&self, argv: Vec<String>) -> CellRun {
        CellRun::Program { argv, env: self.setup.language.env.clone(), cwd: String::new() }
    }

    async fn run(&mut self, run: CellRun, input: Vec<u8>) -> anyhow::Result<After> {
        let workspace = self.take_pending();
        let memory = self.setup.resources.memory;
        if let Err(error) = refuse_more_than_memory(&workspace, &input, memory) {
            return self.not_run("error", &in_words_of_options(&error.message)).await;
        }
        match self.drive(run, workspace, input).await? {
            Ran::Outcome(outcome) => self.show(&outcome).await,
            Ran::Killed(ended) => self.after_kill(ended).await,
            Ran::Failed(SessionError::Ended(reason)) => self.over(&reason).await,
            Ran::Failed(error) => self.not_run("error", &error.to_string()).await,
        }
    }

    fn take_pending(&mut self) -> Workspace {
        let pending = std::mem::replace(&mut self.pending, Pending::new(self.config));
        self.sent.extend(pending.names);
        self.sent.sort();
        self.sent.dedup();
        pending.files.build()
    }

    /// Runs something, passes on what it prints, and lets Ctrl-C interrupt it.
    async fn drive(
        &mut self,
        run: CellRun,
        workspace: Workspace,
        input: Vec<u8>,
    ) -> anyhow::Result<Ran> {
        let (printing, mut printed) = mpsc::unbounded_channel();
        let watch = (!self.style.is_json).then(|| {
            // Nobody reads it anymore once the cell was killed.
            Watch::new(move |stream, bytes| drop(printing.send((stream, bytes.to_vec()))))
        });
        let request = CellRequest {
            run,
            workspace,
            appended: Vec::new(),
            input,
            timeout: self.setup.timeout,
            output: self.config.output_with_kept(),
            shown: self.config.results.files.as_bytes(),
            files: None,
            watch,
        };
        let (ending, ended) = oneshot::channel();
        let done = move |ran: &Result<CellOutcome, SessionError>| {
            // Nobody waits for it if the cell was not killed.
            let _ = ending.send(Killed::of(ran));
        };
        let Self { session, screen, interrupts, .. } = self;
        interrupts.forget();
        let mut running = Box::pin(session.run(request, done));
        let mut last: Option<Instant> = None;
        let ran = loop {
            tokio::select! {
                biased;
                Some((stream, bytes)) = printed.recv() => screen.pass_on(stream, &bytes).await?,
                ran = &mut running => break ran,
                () = interrupts.next() => {
                    let is_second = last.is_some_and(|at| at.elapsed() < SECOND_WITHIN);
                    if is_second || !session.interrupt() {
                        return Ok(Ran::Killed(ended));
                    }
                    last = Some(Instant::now());
                }
            }
        };
        while let Ok((stream, bytes)) = printed.try_recv() {
            screen.pass_on(stream, &bytes).await?;
        }
        Ok(match ran {
            Ok(outcome) => {
                self.cells = outcome.cell;
                Ran::Outcome(Box::new(outcome))
            }
            Err(error) => Ran::Failed(error),
        })
    }

    /// Tells that something did not run.
    async fn not_run(&mut self, status: &str, why: &str) -> anyhow::Result<After> {
        if self.style.is_json {
            self.screen.line(&json::not_run(self.next_cell(), status, why, true)?).await?;
        } else {
            self.screen.remark(why).await?;
        }
        Ok(After::Failed(FAILED))
    }

    /// Waits for the end of a cell that is killed, and tells what became of the session.
    async fn after_kill(&mut self, ended: oneshot::Receiver<Killed>) -> anyhow::Result<After> {
        let killed = tokio::select! {
            killed = ended => killed.unwrap_or(Killed::Nothing),
            () = self.interrupts.next() => return Ok(After::Over(INTERRUPTED)),
        };
        let (number, why) = match killed {
            Killed::Nothing => (self.next_cell(), "it was cancelled before it began".to_owned()),
            Killed::Cell { number, undone } => {
                self.cells = number;
                (number, what_stays(undone))
            }
            Killed::Session => {
                let why = "the cell was killed, and the session with it: there was no checkpoint to go back to";
                return self.over_because(why, INTERRUPTED).await;
            }
        };
        if self.style.is_json {
            self.screen.line(&json::not_run(number, "killed", &why, true)?).await?;
        } else {
            self.screen.remark(&why).await?;
        }
        Ok(if self.style.is_interactive {
            After::Failed(INTERRUPTED)
        } else {
            After::Over(INTERRUPTED)
        })
    }

    /// Tells that the session is gone.
    async fn over(&mut self, reason: &EndReason) -> anyhow::Result<After> {
        let code = match reason {
            EndReason::ByProgram(_) => KILLED,
            EndReason::Closed | EndReason::Lost(_) | EndReason::ServerStops => FAILED,
        };
        self.over_because(&format!("the session has ended: {reason}"), code).await
    }

    async fn over_because(&mut self, why: &str, code: i32) -> anyhow::Result<After> {
        if self.style.is_json {
            self.screen.line(&json::not_run(self.next_cell(), "killed", why, false)?).await?;
        } else {
            self.screen.remark(why).await?;
        }
        Ok(After::Over(code))
    }

    async fn rewind(&mut self, cells: u32) -> anyhow::Result<After> {
        let (undone, left) = match self.session.rewind(cells, |_| {}).await {
            Ok(rewound) => rewound,
            Err(SessionError::Ended(reason)) => return self.over(&reason).await,
            Err(error) => return Err(error.into()),
        };
        if undone == 0 && !self.has_blocks() {
            anyhow::bail!("only sessions in Python have checkpoints to go back to");
        }
        if undone == 0 {
            anyhow::bail!(
                "there is no checkpoint before that cell: {} can be undone",
                cells_of(left)
            );
        }
        let text = format!("undid {}; {} more can be undone", cells_of(undone), cells_of(left));
        self.screen.say(Stream::Stdout, &text).await?;
        Ok(After::Fine)
    }

    fn limits(&self) -> String {
        let Setup { language, timeout, resources, .. } = self.setup;
        let limits = language.sandbox.limits;
        let cores = resources.cpu.as_cores();
        let output = self.config.output_with_kept();
        format!(
            "a cell: {} of run time (--timeout); output of {} is shown\n\
             the session: {} of memory with its files (--memory), {cores} cores (--cpus), {} processes and threads\n\
             its files: {} and {} files\n\
             what can be undone: {} cells at most",
            duration::shown(*timeout),
            rounded((output.head + output.tail) as u64),
            resources.memory,
            limits.pids,
            limits.workspace,
            limits.inodes,
            if self.has_blocks() { self.config.sessions.checkpoints } else { 0 },
        )
    }
}

/// An amount of memory in a usual unit.
fn rounded(bytes: u64) -> ByteSize {
    const UNITS: [u64; 2] = [1 << 20, 1 << 10];
    let unit = UNITS.into_iter().find(|unit| bytes >= *unit).unwrap_or(1);
    ByteSize::bytes(bytes / unit * unit)
}

/// What is told of something that was killed with so many cells undone.
fn what_stays(undone: u32) -> String {
    match undone {
        // Without a checkpoint it is interrupted first, and a command has no variables.
        0 => "it was stopped; what it did until then stays".to_owned(),
        1 => "the cell was killed; the session's variables are as before it".to_owned(),
        cells => format!(
            "the cell was killed; the session's variables are as before the last {cells} cells"
        ),
    }
}

fn cells_of(count: u32) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}
