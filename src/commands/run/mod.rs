//! `isolator run`: runs one program from the command line, in a sandbox made for it.

pub(super) mod input;
mod local;
mod output;

use crate::commands::options::mebibytes;
use clap::Args;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use anyhow::bail;

use crate::calls::command::{CommandAnswer, CommandCall, Finished, RunOptions};
use crate::commands::Work;
use crate::commands::backend::Backend;
use crate::commands::server::{Server, ServerOptions};
use crate::commands::signals::{stop_signal, stopped_by};
use crate::config::Config;
use crate::request::arguments::Arguments;

use input::Names;
use output::Output;

/// Arguments of `isolator run`.
#[derive(Debug, Args)]
#[command(override_usage = "isolator run [OPTIONS] <FILE|-> [--] [ARGS]...\n       \
                            isolator run [OPTIONS] --snippet <NAME> [--] [ARGS]...")]
pub struct RunArguments {
    /// The program's file, or - to read it from standard input. Otherwise the program gets our standard input, unless
    /// that is a terminal
    pub file: Option<PathBuf>,
    /// Run a stored program instead of a file
    #[arg(long, value_name = "NAME", conflicts_with = "language")]
    pub snippet: Option<String>,
    /// Language of the program, if the file's extension doesn't tell
    #[arg(long)]
    pub language: Option<String>,
    /// Another file or folder for the working directory, as PATH or NAME=PATH; can be given several times
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Environment variable for the program; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Longest run time, such as 500ms, 5s or 2m; a number without a unit is seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Print the result as JSON: status, exit code, output, files and how the request was served
    #[arg(long)]
    pub json: bool,
    /// Write the files that the program leaves to this folder, which must be new or empty
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Say nothing but errors on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// A set of packages, or a requirement such as "humanize==4.*" if the configuration allows it; can be given
    /// several times
    #[arg(long, value_name = "SET|REQUIREMENT")]
    pub packages: Vec<String>,
    /// Memory limit, such as 64MB or 1.5G; a number without a unit is MiB
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// CPU limit in cores
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<f64>,
    /// The server
    #[command(flatten)]
    pub server: ServerOptions,
    /// Arguments of the program: the first word after its file, and everything that follows. Write -- before a first one
    /// that begins with a hyphen
    #[arg(trailing_var_arg = true)]
    pub args: Vec<String>,
}

/// A program, and how it is run.
struct Program {
    /// The arguments of the call.
    arguments: Arguments,
    /// The parts that are no arguments.
    options: RunOptions,
    /// The names of the arguments on the command line.
    names: Names,
}

impl Program {
    fn call(arguments: Arguments, options: RunOptions) -> CommandCall {
        CommandCall::Run(Box::new(arguments), options)
    }
}

/// Runs the program, and passes on its output and its exit code.
pub fn run(config: Config, command: RunArguments) -> Work {
    Box::pin(async move {
        let config = Arc::new(config);
        let command = input::understood(command)?;
        let output = Output::new(&command)?;
        let stdin = input::standard_input(&config, &command)?;
        let servers = Server::candidates(&command.server, &config)?;
        let (arguments, names) = input::arguments(&config, command)?;
        let options = RunOptions { files: output.wants_files(), stdin, max_wait_ms: None };
        let program = Program { arguments, options, names };
        let mut stop_signal = pin!(stop_signal()?);
        let finished = tokio::select! {
            finished = through_server(&servers, &program) => finished?,
            signal = &mut stop_signal => return Ok(stopped_by(signal)),
        };
        if let Some(finished) = finished {
            return output.pass_on(&finished, &config);
        }
        match local::execute(&config, program, output.is_quiet(), stop_signal).await? {
            Ok(finished) => output.pass_on(&finished, &config),
            Err(signal) => Ok(stopped_by(signal)),
        }
    })
}

/// Runs the program in the first of the servers that takes it. Returns nothing if none does, and the command can do without.
async fn through_server(servers: &[Server], program: &Program) -> anyhow::Result<Option<Finished>> {
    for server in servers {
        let Program { arguments, options, names } = program;
        let options = RunOptions { max_wait_ms: server.max_packages_wait_ms(), ..options.clone() };
        let call = Program::call(arguments.clone(), options);
        match Backend::Server(server).call(call, None).await {
            Ok(answer) => {
                tracing::info!("the program ran in {}", server.name());
                return finished(answer).map(Some);
            }
            Err(error) if error.is_before_run() && !server.is_chosen => {
                tracing::info!(%error, "{} did not run the program", server.name());
            }
            Err(error) => return Err(names.explain(error.at(server))),
        }
    }
    Ok(None)
}

fn finished(answer: CommandAnswer) -> anyhow::Result<Finished> {
    match answer {
        CommandAnswer::Finished(finished) => Ok(*finished),
        other => bail!("the answer is not that of a program: {other:?}"),
    }
}
