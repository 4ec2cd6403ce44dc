//! `isolator run`: runs one program from the command line, in a sandbox made for it.

pub(super) mod input;
mod output;

use crate::commands::options::mebibytes;
use clap::Args;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::outcome::Status;

use crate::app::{App, PoolFill};
use crate::commands::Work;
use crate::commands::signals::{stop_signal, stopped_by};
use crate::commands::steps::ensure_image;
use crate::commands::wanted_sets::WantedSets;
use crate::config::Config;
use crate::request::pack;
use crate::request::resolve::{self, ProgramJob};
use crate::request::snippets::Snippets;
use crate::result::receipt::UsedPackages;

use output::{Output, Served};

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
    /// Arguments of the program: the first word after its file, and everything that follows. Write -- before a first one
    /// that begins with a hyphen
    #[arg(trailing_var_arg = true)]
    pub args: Vec<String>,
}

/// Runs the program, and passes on its output and its exit code.
pub fn run(config: Config, command: RunArguments) -> Work {
    Box::pin(async move {
        let config = Arc::new(config);
        let command = input::understood(command)?;
        let output = Output::new(&command)?;
        let stdin = input::standard_input(&config, &command)?;
        let (arguments, names) = input::arguments(&config, command)?;
        let request = resolve::program(arguments, &config, &Snippets::new(&config));
        let mut request = request.map_err(|error| names.explain(&error))?;
        let ProgramJob { run, .. } = &mut request;
        pack::refuse_more_than_memory(&run.workspace, &stdin, run.resources.memory)
            .map_err(|error| names.explain(&error))?;
        run.stdin = stdin;
        run.files = Some(output.wanted(&config));
        let name = &request.language.name;
        let found = config.policies.check(name, request.unchecked.clone(), &Client::Host).await?;
        if !found.is_empty() {
            bail!(
                "the policy for {name} forbids something in the program, so it was not run:\n{found}"
            );
        }
        let app = App::new(&config).await?;
        let mut stop_signal = pin!(stop_signal()?);
        // Before the program has to wait for a sandbox, because building an image takes longer than that.
        let image = &request.language.sandbox.image.name;
        tokio::select! {
            image = ensure_image(&app.images, image, output.is_quiet()) => image?,
            signal = &mut stop_signal => {
                app.give_up().await?;
                return Ok(stopped_by(signal));
            }
        };
        let pools = Arc::new(app.start_pools(&config, PoolFill::Nothing)?);
        let client = Client::Host;
        let sets = WantedSets::new(&config, &pools, output.is_quiet())?;
        let wanted = std::mem::take(&mut request.packages);
        let ended = tokio::select! {
            ran = async {
                let given = sets.of(&request.language, wanted).await?;
                request.run.packages = given.as_ref().map(|given| Arc::clone(&given.set));
                let name = &request.language.name;
                let (outcome, receipt) = pools.execute(name, &client, &request.run).await?;
                let failed = outcome.status == Status::Error;
                let packages = match failed {
                    true => Some(sets.known(&config, &request.language).await),
                    false => None,
                };
                anyhow::Ok((outcome, receipt, given, packages))
            } => Ok(ran),
            signal = stop_signal => Err(signal),
        };
        sets.close().await;
        let closed = pools.close(Duration::ZERO).await;
        let (outcome, receipt, given, packages) = match ended {
            Ok(ran) => ran?,
            Err(signal) => {
                closed?;
                return Ok(stopped_by(signal));
            }
        };
        closed?;
        let used = given.map(|given| UsedPackages {
            sets: given.asked,
            hash: given.set.hash.clone(),
            waited: given.waited,
        });
        let served = Served { receipt: &receipt, used, packages };
        output.pass_on(outcome, served, &config, &request)
    })
}
