//! `isolator session`: cells of code one after the other in one sandbox, at a prompt or from standard input.

mod cells;
mod console;
mod directive;
mod input;
mod json;
mod prompt;
mod screen;
mod setup;
mod shown;

use crate::commands::options::mebibytes;
use clap::Args;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::output::Stream;
use tokio::sync::mpsc;

use crate::app::{self, App};
use crate::calls::Call;
use crate::commands::own_calls::OwnCalls;
use crate::commands::signals::{Interrupts, end_signal, stopped_by};
use crate::commands::steps::{Steps, ensure_image};
use crate::commands::{Work, complain};
use crate::config::Config;
use crate::request::packages::WantedPackages;

use cells::{Cells, CellsError};
use console::{After, Console, Style};
use prompt::{Answer, Prompt};
use setup::{Pending, Setup};

/// Arguments of `isolator session`.
#[derive(Debug, Args)]
pub struct SessionArguments {
    /// Language of the cells
    #[arg(default_value = "python")]
    pub language: String,
    /// A file or folder for the working directory, as PATH or NAME=PATH; can be given several times
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Longest run time of each cell, such as 500ms, 5s or 2m; a number without a unit is seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Read cells from standard input without a prompt, even from a terminal, and print one line of JSON for each
    #[arg(long)]
    pub json: bool,
    /// Go on after a cell of piped input that failed
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
}

/// How long no cell may come before it is said that one is waited for.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// How long the session's task may take to notice that nobody uses it anymore.
const END_GRACE: Duration = Duration::from_secs(1);

/// How long it may take to see whether there is another cell.
const LOOK_AHEAD: Duration = Duration::from_millis(100);

/// Opens a session and runs cells in it until there are no more.
pub fn session(config: Config, command: SessionArguments) -> Work {
    Box::pin(async move {
        let config = Arc::new(config);
        let setup = Setup::new(&config, &command)?;
        let mut pending = Pending::new(&config);
        for file in &command.files {
            let added = pending.add(file, &config, &setup.language);
            added.with_context(|| format!("--file {file}"))?;
        }
        let app = App::new(&config).await?;
        let mut end_signal = pin!(end_signal()?);
        let mut interrupts = Interrupts::new()?;
        let image = &setup.language.sandbox.image.name;
        tokio::select! {
            image = ensure_image(&app.images, image, command.quiet) => { image?; }
            signal = &mut end_signal => {
                app.give_up().await?;
                return Ok(stopped_by(signal));
            }
            () = interrupts.next() => {
                app.give_up().await?;
                return Ok(stopped_by(libc::SIGINT));
            }
        };
        let own = OwnCalls::start(&app, &config)?;
        let talked = tokio::select! {
            talked = talk(&config, &setup, &command, pending, &own, interrupts) => talked,
            signal = end_signal => Ok(stopped_by(signal)),
        };
        // Whatever has ended it, nothing may be left.
        let closed = own.close(END_GRACE).await;
        let code = talked?;
        closed?;
        Ok(code)
    })
}

async fn talk(
    config: &Config,
    setup: &Setup,
    command: &SessionArguments,
    pending: Pending,
    own: &OwnCalls,
    mut interrupts: Interrupts,
) -> anyhow::Result<ExitCode> {
    let steps = Steps::of_packages(&command.packages);
    let receiver = (!command.quiet).then(|| steps.receiver());
    let call = Call { client: Client::Host, watch: None, steps: receiver };
    let wanted = WantedPackages::named(command.packages.clone());
    let granted = steps.follow(own.calls.packages_for(&setup.language, wanted, &call, None));
    let granted = tokio::select! {
        granted = granted => granted.map_err(setup::explain)?,
        () = interrupts.next() => return Ok(stopped_by(libc::SIGINT)),
    };
    for note in granted.notes.iter().filter(|_| !command.quiet) {
        complain(&format!("isolator: {note}"));
    }
    let request = setup.request(config, granted.set());
    let name = &setup.language.name;
    let (session, _) = tokio::select! {
        opened = own.pools.open_session(name, &call.client, &request) => opened?,
        () = interrupts.next() => return Ok(stopped_by(libc::SIGINT)),
    };
    let is_interactive = !command.json && std::io::stdin().is_terminal();
    let style = Style {
        is_json: command.json,
        is_quiet: command.quiet,
        is_interactive,
        keeps_going: command.keep_going,
    };
    let mut console = Console::new(config, setup, session, pending, interrupts, style);
    let code = if is_interactive {
        at_prompt(&mut console, setup, command).await?
    } else {
        piped(&mut console, config, setup, command).await?
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
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
        match prompt.ask(format!("{} [{}]> ", setup.name(), console.next_cell())).await {
            Answer::Input(input) => match console.obey(&input).await? {
                After::Over(code) => return Ok(code),
                After::Fine | After::Failed(_) => {}
            },
            Answer::Interrupted => {}
            Answer::End => return Ok(0),
            Answer::Failed(error) => anyhow::bail!("the terminal can't be read: {error}"),
        }
    }
}

/// Runs the cells of standard input, up to the first that fails. Returns the exit code.
async fn piped(
    console: &mut Console<'_>,
    config: &Config,
    setup: &Setup,
    command: &SessionArguments,
) -> anyhow::Result<i32> {
    let mut cells = read_cells(setup.language.kernel, config.limits.files().total);
    let mut code = 0;
    let mut is_waiting = !command.quiet && !command.json;
    loop {
        let cell = tokio::select! {
            cell = cells.recv() => cell,
            () = console.interrupted() => return Ok(console::INTERRUPTED),
            () = tokio::time::sleep(SILENT_FOR), if is_waiting => {
                is_waiting = false;
                let waits = "waiting for cells on standard input; they run when a line such as # %% or its end comes";
                console.screen.remark(waits).await?;
                continue;
            }
        };
        is_waiting = false;
        let Some(cell) = cell else { return Ok(code) };
        let number = console.next_cell();
        match console.run_code(cell?).await? {
            After::Fine => {}
            After::Failed(failed) if command.keep_going => {
                code = if code == 0 { failed } else { code }
            }
            After::Failed(failed) => {
                let next = tokio::time::timeout(LOOK_AHEAD, cells.recv()).await;
                if matches!(next, Ok(Some(_))) && !command.json {
                    let advice = "the cells after it were not run; --keep-going runs them";
                    console.screen.remark(&format!("cell {number} failed, and {advice}")).await?;
                }
                return Ok(failed);
            }
            After::Over(over) => return Ok(if code == 0 { over } else { code }),
        }
    }
}

/// Starts a thread that reads the cells. It ends with the process at the latest.
fn read_cells(
    interpreter: Option<Interpreter>,
    most: u64,
) -> mpsc::Receiver<Result<String, CellsError>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut cells = Cells::new(std::io::stdin().lock(), interpreter, most);
        while let Some(cell) = cells.next().transpose() {
            let is_last = cell.is_err();
            if sender.blocking_send(cell).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
