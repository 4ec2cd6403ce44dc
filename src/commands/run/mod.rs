//! `isolator run`: runs one program from the command line, in a sandbox made for it.

pub(super) mod input;
mod output;

use std::pin::pin;
use std::time::Duration;

use anyhow::bail;
use isolator_pool::pool::admission::Client;

use crate::app::{App, PoolFill};
use crate::commands::Work;
use crate::commands::cli::RunArguments;
use crate::commands::signals::{stop_signal, stopped_by};
use crate::commands::steps::ensure_image;
use crate::config::Config;
use crate::request::pack;
use crate::request::resolve::{self, Request};
use crate::request::snippets::Snippets;

use output::Output;

/// Runs the program, and passes on its output and its exit code.
pub fn run(config: Config, command: RunArguments) -> Work {
    Box::pin(async move {
        let output = Output::new(&command)?;
        let names = input::Names::of(&command);
        let stdin = input::standard_input(&config, &command)?;
        let arguments = input::arguments(&config, command)?;
        let request = resolve::resolve(arguments, &config, &Snippets::new(&config));
        let mut request = request.map_err(|error| names.explain(&error))?;
        let Request { run, .. } = &mut request;
        pack::refuse_more_than_memory(&run.workspace, &stdin, run.resources.memory)
            .map_err(|error| names.explain(&error))?;
        run.stdin = stdin;
        run.files = Some(output.wanted(&config));
        let name = &request.language.name;
        let found = config.policies.check(name, request.unchecked.clone()).await;
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
            signal = &mut stop_signal => return Ok(stopped_by(signal)),
        };
        let pools = app.start_pools(&config, PoolFill::Nothing)?;
        let client = Client::host();
        let ended = tokio::select! {
            executed = pools.execute(name, &client, &request.run) => Ok(executed),
            signal = stop_signal => Err(signal),
        };
        let closed = pools.close(Duration::ZERO).await;
        let (outcome, receipt) = match ended {
            Ok(executed) => executed?,
            Err(signal) => {
                closed?;
                return Ok(stopped_by(signal));
            }
        };
        closed?;
        output.pass_on(outcome, &receipt, &config, &request)
    })
}
