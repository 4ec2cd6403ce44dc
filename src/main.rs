//! The binary: parses the command line, loads the configuration, runs the command.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use isolator::commands;
use isolator::commands::cli::{Cli, Command};
use isolator::config::Config;
use isolator::descriptors;
use isolator::policy;
use isolator_pool::engine::embedded::launcher;
use tokio::runtime::Runtime;

/// The exit code for Isolator's own errors, as with `docker run`, so that it is not taken for the program's.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    // Before there is a second thread.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let code = launcher::run(&arguments, log_errors_to_stderr);
    if let Some(code) = code.or_else(|| policy::run_checker(&arguments)) {
        return code;
    }
    give_back_large_blocks();
    descriptors::raise_limit();
    start()
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
    let cli = Cli::parse();
    log_to_stderr(&cli);
    let ended = Runtime::new().context("can't start the threads").and_then(|runtime| {
        let ended = runtime.block_on(run(cli));
        // If the standard streams are sockets, as Node.js makes them, a thread reads from the host until that closes
        // them. A host may be waiting for the end of this process instead.
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    });
    ended.unwrap_or_else(|error| {
        commands::complain(&format!("isolator: {}", commands::told(&error)));
        ExitCode::from(FAILED)
    })
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let load = || -> anyhow::Result<Config> {
        let mut config = Config::load(cli.config.as_deref())?;
        config.is_file_chosen_on_command_line = cli.config.is_some();
        config.choose_engine(cli.engine);
        Ok(config)
    };
    match cli.command {
        Command::Serve(arguments) => commands::serve::serve(load()?, arguments).await,
        Command::Run(arguments) => commands::run::run(load()?, arguments).await,
        Command::Doctor(arguments) => commands::doctor::doctor(load()?, arguments).await,
        Command::Image(command) => commands::image::image(load()?, command).await,
        Command::Bench(arguments) => commands::bench::bench(load()?, arguments).await,
        Command::Gc => commands::gc::gc(load()?).await,
        Command::Token(arguments) => commands::token::token(&arguments),
        Command::Install(arguments) => {
            commands::install::install(cli.config.as_deref(), cli.engine, arguments)
        }
        Command::Config(command) => commands::config::config(cli.config, cli.engine, command).await,
        Command::Man { directory } => commands::man::man(&directory),
        Command::Completions { shell } => Ok(commands::completions::completions(shell)),
    }
}

/// The launcher reports what goes wrong while it creates a sandbox. What the sandbox's first process says is not
/// reported, so that is logged there.
fn log_errors_to_stderr() {
    const OF_LAUNCHER: &str = concat!(
        "libcontainer::container=off,",
        "libcontainer::process::container_main_process=off,",
        "libcontainer::process::container_intermediate_process=off",
    );
    tracing_subscriber::fmt()
        .with_env_filter(format!("error,{OF_LAUNCHER}"))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
}

/// Standard output belongs to the protocol and to programs; the log goes to standard error.
fn log_to_stderr(cli: &Cli) {
    let quiet = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    // These modules log each error answer, with an identifier of any length, and each answer that nobody waits for.
    const OF_CLIENTS: &str = "rmcp=error,rmcp::service=off";
    let usual = format!("warn,{OF_CLIENTS},isolator={quiet},isolator_pool={quiet}");
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| usual.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
