//! The binary: parses the command line, loads the configuration, runs the command.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory, Parser};
use isolator::commands;
use isolator::commands::cli::{Cli, Command};
use isolator::commands::global::{FAILED, exit_code};
use isolator::log;
use isolator::policy;
use isolator_pool::engine::embedded::launcher;
use isolator_pool::engine::process_limits;
use isolator_runner::inherited;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    // Before there is a second thread.
    let ignored = begin();
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let code = launcher::run(&arguments, log_errors_to_stderr);
    if let Some(code) = code.or_else(|| policy::run_checker(&arguments)) {
        return code;
    }
    // A server that was started like this must not end with its terminal. The processes that it starts are not affected.
    for signal in ignored.into_iter().filter(|signal| LEFT_IGNORED.contains(signal)) {
        inherited::ignore(signal);
    }
    give_back_large_blocks();
    start()
}

/// The signals that `nohup` ignores, and those that shells without job control ignore for programs in the background.
const LEFT_IGNORED: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Resets the signals and limits that this process and its children inherited. Returns the signals that were ignored.
fn begin() -> Vec<i32> {
    // Errors are returned for closed pipes, and for files that get longer than this process may write. The signals would
    // end it without a word.
    let ignored = inherited::reset_signals(&[libc::SIGPIPE]);
    inherited::ignore(libc::SIGXFSZ);
    process_limits::raise_own();
    set_umask();
    ignored
}

/// Sets a umask with which only this user can write to new folders, and can always use them. Files that others must read, such as
/// a sandbox's users, get their modes where they are made.
fn set_umask() {
    let (owner, others) = (Mode::RWXU, Mode::WGRP | Mode::WOTH);
    let inherited = umask(others);
    umask((inherited - owner) | others);
}

/// Bytes from which a block of memory is the system's again as soon as it is not used.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: i32 = 1 << 20;

/// By default the allocator raises this limit to the largest block that was given back. After the first large messages,
/// a server would hold hundreds of MiB that it does not use.
fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: the call has no conditions. If it fails, memory is managed as by default.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// How long threads can go on once the command has ended.
const THREADS_TIMEOUT: Duration = Duration::from_millis(500);

fn start() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Wrong usage, or a text such as that of --help.
        Err(error) => {
            let code = if error.use_stderr() { FAILED.into() } else { ExitCode::SUCCESS };
            return exit_code(commands::print_usage(&error).map(|()| code));
        }
    };
    log_to_stderr(&cli);
    let ended = Runtime::new().context("can't start the threads").and_then(|runtime| {
        let ended = runtime.block_on(run(cli));
        // If the standard streams are sockets, as Node.js makes them, a thread reads from the host until that closes
        // them. A host may be waiting for the end of this process instead.
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    });
    exit_code(ended)
}

async fn run(Cli { global, command }: Cli) -> anyhow::Result<ExitCode> {
    global.remember();
    match command {
        Command::Serve(arguments) => {
            commands::serve::serve(move || Ok(global.load()?), arguments).await
        }
        Command::Run(arguments) => commands::run::run(global.load()?, arguments).await,
        Command::Session(arguments) => commands::session::session(global.load()?, arguments).await,
        Command::Doctor(arguments) => commands::doctor::doctor(global.load()?, arguments).await,
        Command::Image(command) => commands::image::image(global.load()?, command).await,
        Command::Packages(command) => commands::packages::packages(global.load()?, command).await,
        Command::Status(arguments) => commands::status::status(global.load()?, arguments).await,
        Command::Reload(arguments) => {
            commands::reload::reload(move || Ok(global.load()?), arguments).await
        }
        Command::Drain(arguments) => {
            commands::drain::drain(move || Ok(global.load()?), arguments).await
        }
        Command::Tune(arguments) => commands::tune::tune(global.load()?, arguments).await,
        Command::Gc => commands::gc::gc(global.load()?).await,
        Command::Token(arguments) => commands::token::token(&arguments),
        Command::Install(arguments) => {
            commands::install::install(global.config.as_deref(), global.engine, arguments)
        }
        Command::Config(command) => commands::config::config(global, command).await,
        Command::Man { directory } => commands::man::man(Cli::command(), &directory),
        Command::Completions { shell } => commands::completions::completions(Cli::command(), shell),
    }
}

fn log_errors_to_stderr() {
    log::of_launcher_to_stderr("error");
}

fn log_to_stderr(cli: &Cli) {
    let level = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    log::to_stderr(level, cli.global.log_format);
}
