//! The binary: reads the command line, loads the configuration, runs the command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use isolator::commands;
use isolator::commands::cli::{Cli, Command};
use isolator::config::Config;
use isolator_pool::engine::embedded::launch;

/// For errors of our own, as `docker run` has it: a program's codes stay its own.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    // Before there is a second thread.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Some(code) = launch::run(&arguments, log_errors_to_stderr) {
        return code;
    }
    start()
}

#[tokio::main]
async fn start() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(&cli);
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            commands::complain(&format!("isolator: {error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let load = || -> anyhow::Result<Config> {
        let mut config = Config::load(cli.config.as_deref())?;
        if let Some(engine) = cli.engine {
            config.engine.kind = engine;
        }
        Ok(config)
    };
    match cli.command {
        Command::Serve(arguments) => commands::serve::serve(load()?, arguments).await,
        Command::Run(arguments) => commands::run::run(load()?, arguments).await,
        Command::Doctor => commands::doctor::doctor(load()?).await,
        Command::Image(command) => commands::image::image(load()?, command).await,
        Command::Bench(arguments) => commands::bench::bench(load()?, arguments).await,
        Command::Gc => commands::gc::gc(load()?).await,
        Command::Token(arguments) => commands::token::token(&arguments),
        Command::Install(arguments) => {
            commands::install::install(cli.config.as_deref(), cli.engine, arguments)
        }
        Command::Config(command) => commands::config::config(cli.config.as_deref(), command),
        Command::Completions { shell } => Ok(commands::completions::completions(shell)),
    }
}

/// What goes wrong while a sandbox is made is told by the launcher; what the sandbox's own first process
/// says of it is not, so it is logged there.
fn log_errors_to_stderr() {
    const OF_LAUNCHER: &str = "libcontainer::container=off,\
        libcontainer::process::container_main_process=off,\
        libcontainer::process::container_intermediate_process=off";
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
    // What that says is about clients: each answer with an error, with an identifier of any length, and each answer
    // that nobody waits for any more.
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
