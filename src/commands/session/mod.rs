//! `isolator session`: cells of code one after the other in one sandbox, at a prompt, from standard input, or of
//! a notebook or program.

mod cells;
mod console;
mod directive;
mod input;
mod json;
mod notebook;
mod prompt;
mod record;
mod screen;
mod setup;
mod shown;
mod source;

use crate::commands::options::mebibytes;
use anyhow::Context as _;
use clap::Args;
use std::convert::Infallible;
use std::io::{BufRead, IsTerminal as _};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::escaped;
use isolator_pool::run::output::Stream;
use tokio::sync::mpsc;

use crate::app::{self, App};
use crate::calls::command::{CommandCall, OpenedSession};
use crate::commands::backend::Backend;
use crate::commands::own_calls::OwnCalls;
use crate::commands::server::{Server, ServerOptions};
use crate::commands::signals::{Interrupts, end_signal, stopped_by};
use crate::commands::steps::{Steps, ensure_image};
use crate::commands::{Work, complain};
use crate::config::{Config, LONGEST_SESSION};
use crate::request::arguments::OneSession;
use crate::request::notebook::is_notebook;

use cells::Cells;
use console::{After, Console, Style};
use notebook::{CodeCell, Notebook};
use prompt::{Prompt, Reply};
use setup::{Opening, Setup};
use source::{NewVersion, Source};

/// Arguments of `isolator session`.
#[derive(Debug, Args)]
pub struct SessionArguments {
    /// Language of the cells, or a file that has them: a notebook, or a program in which lines such as # %% separate them
    #[arg(default_value = "python", value_name = "LANGUAGE|FILE")]
    pub language: String,
    /// Write the notebook that was run with its outputs to this file, which is replaced if it exists
    #[arg(long, value_name = "NOTEBOOK")]
    pub out: Option<String>,
    /// A file or folder for the working directory, as PATH or NAME=PATH; can be given several times
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Longest run time of each cell, such as 500ms, 5s or 2m; a number without a unit is seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Read cells from standard input without a prompt, even from a terminal, and print one line of JSON for each
    #[arg(long)]
    pub json: bool,
    /// Go on after a cell of piped input or of a file that failed
    #[arg(long)]
    pub keep_going: bool,
    /// Say nothing but errors on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// A set of packages, or a requirement such as "humanize==4.*" if the configuration allows it; can be given
    /// several times
    #[arg(long, value_name = "SET|REQUIREMENT")]
    pub packages: Vec<String>,
    /// Memory limit, such as 64MB or 1.5G; a number without a unit is MiB
    #[arg(long, alias = "memory-mb", value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// CPU limit in cores
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<f64>,
    /// The server
    #[command(flatten)]
    pub server: ServerOptions,
}

/// How long it can take until a cell comes before a remark says that one is awaited.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// How long the session's task can take to notice that it is not used anymore.
const END_GRACE: Duration = Duration::from_secs(1);

/// The exit code of a cell that ended with an exception.
const RAISED: i32 = 1;

/// How long it may take to see whether there is another cell.
const LOOK_AHEAD: Duration = Duration::from_millis(100);

/// Opens a session and runs cells in it until there are no more.
pub fn session(mut config: Config, command: SessionArguments) -> Work {
    Box::pin(async move {
        // In this process, the only session ends with its user.
        config.sessions.max = 1;
        config.sessions.max_per_client = 1;
        config.sessions.idle_timeout = LONGEST_SESSION;
        config.sessions.max_age = LONGEST_SESSION;
        let config = Arc::new(config);
        let (source, language) = Source::open(&command, &config)?;
        let setup = Setup::new(&config, &language, command.timeout.clone())?;
        let opening = setup.opening(&config, &command)?;
        let servers = Server::candidates(&command.server, &config)?;
        let mut end_signal = pin!(end_signal()?);
        let mut interrupts = Interrupts::new()?;
        let found = tokio::select! {
            found = in_server(&servers, &opening) => found?,
            signal = &mut end_signal => return Ok(stopped_by(signal)),
            () = interrupts.next() => return Ok(stopped_by(libc::SIGINT)),
        };
        let talk = Talk { config: &config, setup: &setup, command: &command, source, interrupts };
        if let Some((server, opened)) = found {
            tracing::info!("the session is in {}", server.name());
            let sent = opening.sent();
            // When this ends, the server closes the session.
            return tokio::select! {
                talked = talk.begin(Backend::Server(server), opened, sent) => talked,
                signal = end_signal => Ok(stopped_by(signal)),
            };
        }
        in_this_process(talk, opening, end_signal).await
    })
}

/// Opens the session in the first of the servers that can. Returns nothing if none can, and the command can do without.
async fn in_server<'s>(
    servers: &'s [Server],
    opening: &Opening,
) -> anyhow::Result<Option<(&'s Server, OpenedSession)>> {
    for server in servers {
        match opening.call(Backend::Server(server), server.max_packages_wait_ms(), None).await {
            Ok(opened) => return Ok(Some((server, opened))),
            // Until a session is open, nothing has run.
            Err(error) if !server.is_chosen => {
                tracing::info!(%error, "{} did not open the session", server.name());
            }
            Err(error) => return Err(opening.names.explain(error.at(server))),
        }
    }
    Ok(None)
}

/// Opens the session in a sandbox that this process makes.
async fn in_this_process(
    mut talk: Talk<'_>,
    opening: Opening,
    mut end_signal: Pin<&mut impl Future<Output = i32>>,
) -> anyhow::Result<ExitCode> {
    let (config, is_quiet) = (talk.config, talk.command.quiet);
    // Errors of arguments come before anything is started.
    opening.check(config)?;
    let app = App::new(config).await?;
    let image = &talk.setup.language.sandbox.image.name;
    tokio::select! {
        image = ensure_image(&app.images, image, is_quiet) => { image?; }
        signal = &mut end_signal => {
            app.give_up().await?;
            return Ok(stopped_by(signal));
        }
        () = talk.interrupts.next() => {
            app.give_up().await?;
            return Ok(stopped_by(libc::SIGINT));
        }
    };
    let own = OwnCalls::start(&app, config)?;
    let talked = tokio::select! {
        talked = open_and_talk(talk, &opening, Backend::Own(&own)) => talked,
        signal = end_signal => Ok(stopped_by(signal)),
    };
    // Whatever has ended it, nothing may be left.
    let closed = own.close(END_GRACE).await;
    let code = talked?;
    closed?;
    Ok(code)
}

async fn open_and_talk(
    mut talk: Talk<'_>,
    opening: &Opening,
    backend: Backend<'_>,
) -> anyhow::Result<ExitCode> {
    let steps = Steps::of_packages(&talk.command.packages);
    let on_piece = (!talk.command.quiet).then(|| steps.on_piece());
    let opened = tokio::select! {
        opened = steps.follow(opening.call(backend, None, on_piece)) => opened,
        () = talk.interrupts.next() => return Ok(stopped_by(libc::SIGINT)),
    };
    let opened = opened.map_err(|error| opening.names.explain(error))?;
    talk.begin(backend, opened, opening.sent()).await
}

/// A conversation with a user.
struct Talk<'a> {
    config: &'a Arc<Config>,
    setup: &'a Setup,
    command: &'a SessionArguments,
    source: Source,
    interrupts: Interrupts,
}

impl Talk<'_> {
    /// Runs what comes, until the user or the session ends it. The session is closed when the returned future is dropped.
    async fn begin(
        self,
        backend: Backend<'_>,
        opened: OpenedSession,
        sent: Vec<String>,
    ) -> anyhow::Result<ExitCode> {
        let Self { config, setup, command, source, interrupts } = self;
        for note in opened.notes.iter().filter(|_| !command.quiet) {
            complain(&format!("isolator: {}", escaped(note)));
        }
        let is_interactive = source.is_input() && !command.json && std::io::stdin().is_terminal();
        let style = Style {
            is_json: command.json,
            is_quiet: command.quiet,
            is_interactive,
            is_of_file: !source.is_input(),
            keeps_going: command.keep_going,
        };
        let held = OneSession { session: Some(opened.session.clone()) };
        let mut console = Console::new(config, setup, backend, opened, sent, interrupts, style);
        let talked = async {
            let (kernel, most) = (setup.language.kernel, config.limits.files().total);
            match source {
                Source::Input if is_interactive => at_prompt(&mut console, setup, command).await,
                Source::Input => {
                    let name = "standard input".to_owned();
                    let cells = read_cells(name, || std::io::stdin().lock(), kernel, most);
                    let is_awaited = !command.quiet && !command.json;
                    run_all(&mut console, cells, is_awaited, command).await
                }
                Source::Program { path, file } => {
                    let cells = read_cells(path, || file, kernel, most);
                    run_all(&mut console, cells, false, command).await
                }
                Source::Notebook { notebook, out } => {
                    run_notebook(&mut console, notebook, out, command).await
                }
            }
        };
        let held = async {
            // Its end is the session's, which the next cell reports with the reason.
            let _ = backend.call(CommandCall::Hold(held), None).await;
            std::future::pending::<Infallible>().await
        };
        let code = tokio::select! {
            code = talked => code?,
            never = held => match never {},
        };
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
    }
}

/// Runs what is typed, until the user or the session ends it. Returns the exit code.
async fn at_prompt(
    console: &mut Console<'_>,
    setup: &Setup,
    command: &SessionArguments,
) -> anyhow::Result<i32> {
    let history = app::user_state().map(|folder| folder.join(format!("history-{}", setup.name())));
    let mut prompt = Prompt::new(setup.language.kernel, history)?;
    if !command.quiet {
        let interpreter = console.interpreter().unwrap_or(setup.name());
        let greeting = format!("{interpreter} in a sandbox; :help lists the commands");
        console.screen.say(Stream::Stdout, &greeting).await?;
    }
    loop {
        console.screen.begin_line().await?;
        let asked = format!("{} [{}]> ", setup.name(), console.next_cell());
        match prompt.ask(asked, async |text| console.complete(text).await).await {
            Reply::Input(input) => match console.obey(&input).await? {
                After::Over(code) | After::Exited(code) => return Ok(code),
                After::Fine | After::Failed(_) => {}
            },
            Reply::Interrupted => {}
            Reply::End => return Ok(0),
            Reply::Failed(error) => anyhow::bail!("the terminal can't be read: {error}"),
        }
    }
}

/// Runs cells as they come, up to the first that fails. Returns the exit code.
async fn run_all(
    console: &mut Console<'_>,
    mut cells: mpsc::Receiver<anyhow::Result<String>>,
    mut is_awaited: bool,
    command: &SessionArguments,
) -> anyhow::Result<i32> {
    let mut code = 0;
    loop {
        let cell = tokio::select! {
            cell = cells.recv() => cell,
            () = console.interrupted() => return Ok(console::INTERRUPTED),
            () = tokio::time::sleep(SILENT_FOR), if is_awaited => {
                is_awaited = false;
                let waits = "waiting for cells on standard input; they run when a line such as # %% or its end comes";
                console.screen.remark(waits).await?;
                continue;
            }
        };
        is_awaited = false;
        let Some(cell) = cell else { return Ok(code) };
        let number = console.next_cell();
        let after = console.run_code(cell?).await?;
        let after = match console.is_run_interrupted() {
            true => After::Over(console::INTERRUPTED),
            false => after,
        };
        let last = match next_after(after, &mut code, command.keep_going) {
            Next::Cell => continue,
            Next::End(last) => last,
        };
        if matches!(after, After::Failed(_)) {
            let next = tokio::time::timeout(LOOK_AHEAD, cells.recv()).await;
            if matches!(next, Ok(Some(_))) {
                say_not_run(console, number, after, command).await?;
            }
        }
        return Ok(last);
    }
}

/// Runs the cells of a notebook, up to the first that fails, and writes the notebook with their outputs. Returns the exit code.
async fn run_notebook(
    console: &mut Console<'_>,
    mut notebook: Notebook,
    out: Option<NewVersion>,
    command: &SessionArguments,
) -> anyhow::Result<i32> {
    let cells = notebook.code();
    let (count, mut code) = (cells.len(), 0);
    notebook.clear()?;
    for (CodeCell { at, source, may_raise }, number) in cells.into_iter().zip(1_usize..) {
        if !command.quiet && !command.json {
            console.screen.remark(&format!("cell {number} of {count}")).await?;
        }
        if out.is_some() {
            console.record();
        }
        let after = console.run_code(source).await?;
        if let Some(record) = console.recorded()
            && !notebook.put(at, record)?
        {
            let remark = format!(
                "cell {number}: its outputs are left out of the notebook, which has more than {} MiB of them",
                notebook::MAX_NOTEBOOK >> 20
            );
            console.screen.remark(&remark).await?;
        }
        let after = match after {
            _ if console.is_run_interrupted() => After::Over(console::INTERRUPTED),
            After::Failed(RAISED) if may_raise => After::Fine,
            after => after,
        };
        if let Next::End(last) = next_after(after, &mut code, command.keep_going) {
            code = last;
            if number < count {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                say_not_run(console, number, after, command).await?;
            }
            break;
        }
    }
    if let Some(out) = out {
        let content = notebook.written()?;
        tokio::task::spawn_blocking(move || out.write(&content)).await??;
    }
    Ok(code)
}

/// What follows a cell.
enum Next {
    Cell,
    /// The end, with this exit code.
    End(i32),
}

/// Whether the next cell runs. Keeps the exit code of the first that failed.
const fn next_after(after: After, code: &mut i32, keeps_going: bool) -> Next {
    match after {
        After::Fine => Next::Cell,
        After::Failed(failed) => {
            if *code == 0 {
                *code = failed;
            }
            if keeps_going { Next::Cell } else { Next::End(failed) }
        }
        After::Exited(over) | After::Over(over) => Next::End(if *code == 0 { over } else { *code }),
    }
}

async fn say_not_run(
    console: &mut Console<'_>,
    number: u32,
    after: After,
    command: &SessionArguments,
) -> anyhow::Result<()> {
    if command.json {
        return Ok(());
    }
    let why = match after {
        _ if console.is_run_interrupted() => "was interrupted, and the cells after it were not run",
        After::Over(_) => "has ended the session, so the cells after it were not run",
        After::Exited(_) => {
            "asked to exit, so the cells after it were not run; --keep-going runs them"
        }
        After::Fine | After::Failed(_) => {
            "failed, and the cells after it were not run; --keep-going runs them"
        }
    };
    console.screen.remark(&format!("cell {number} {why}")).await
}

/// Refuses a whole notebook, which is no cell.
fn not_a_notebook(cell: String) -> anyhow::Result<String> {
    if is_notebook(&cell) {
        anyhow::bail!(
            "this is a notebook: save it under a name that ends with .ipynb, and run isolator session NAME.ipynb"
        );
    }
    Ok(cell)
}

/// Starts a thread that reads the cells. It ends with the process at the latest.
fn read_cells<R: BufRead>(
    name: String,
    open: impl FnOnce() -> R + Send + 'static,
    interpreter: Option<Interpreter>,
    most: u64,
) -> mpsc::Receiver<anyhow::Result<String>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut cells = Cells::new(open(), interpreter, most);
        while let Some(cell) = cells.next().transpose() {
            let cell = cell.map_err(anyhow::Error::from).and_then(not_a_notebook);
            let is_last = cell.is_err();
            let cell = cell.with_context(|| name.clone());
            if sender.blocking_send(cell).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
