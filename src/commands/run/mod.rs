//! `isolator run`: runs one program from the command line, in a sandbox made for it.

pub(super) mod input;
mod output;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::outcome::Status;

use crate::app::{App, PoolFill};
use crate::commands::Work;
use crate::commands::cli::RunArguments;
use crate::commands::signals::{stop_signal, stopped_by};
use crate::commands::steps::ensure_image;
use crate::commands::wanted_sets::WantedSets;
use crate::config::Config;
use crate::request::pack;
use crate::request::resolve::{self, ProgramJob};
use crate::request::snippets::Snippets;
use crate::result::receipt::UsedPackages;

use output::{Output, Served};

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
