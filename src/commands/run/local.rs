//! Runs a program in a sandbox that this process makes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{Program, finished};
use crate::app::App;
use crate::calls::command::{CommandError, Finished};
use crate::commands::backend::Backend;
use crate::commands::own_calls::OwnCalls;
use crate::commands::steps::{Steps, ensure_image};
use crate::config::Config;
use crate::request::resolve;
use crate::request::snippets::Snippets;

/// Runs a program. The inner error is a signal that has stopped it.
///
/// # Errors
///
/// When the arguments can't be used, a policy refuses the program, or the sandbox failed.
pub(super) async fn execute(
    config: &Arc<Config>,
    program: Program,
    is_quiet: bool,
    mut stop_signal: Pin<&mut impl Future<Output = i32>>,
) -> anyhow::Result<Result<Finished, i32>> {
    // Errors of arguments come before anything is started.
    let job = resolve::program(program.arguments.clone(), config, &Snippets::new(config));
    let job = job.map_err(|error| program.names.explain(CommandError::from(error).into()));
    let image = &job?.language.sandbox.image.name;
    let app = App::new(config).await?;
    // Before the program has to wait for a sandbox, because building an image takes longer than that.
    tokio::select! {
        image = ensure_image(&app.images, image, is_quiet) => { image?; }
        signal = &mut stop_signal => {
            app.give_up().await?;
            return Ok(Err(signal));
        }
    };
    let own = OwnCalls::start(&app, config)?;
    let steps = Steps::of_packages(&program.arguments.packages);
    let receiver = (!is_quiet).then(|| steps.on_piece());
    let Program { arguments, options, names } = program;
    let call = Program::call(arguments, options);
    let ended = tokio::select! {
        ran = steps.follow(Backend::Own(&own).call(call, receiver)) => Ok(ran),
        signal = stop_signal => Err(signal),
    };
    let closed = own.close(Duration::ZERO).await;
    let ran = match ended {
        Ok(ran) => ran.map_err(|error| names.explain(error))?,
        Err(signal) => {
            closed?;
            return Ok(Err(signal));
        }
    };
    closed?;
    Ok(Ok(finished(ran)?))
}
