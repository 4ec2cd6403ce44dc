//! Runs a program in a sandbox that this process makes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use isolator_pool::pool::admission::Client;

use super::input::Names;
use crate::app::App;
use crate::audit::Note;
use crate::calls::finished::{Finished, Wanted};
use crate::calls::{Call, CallError};
use crate::commands::own_calls::OwnCalls;
use crate::commands::steps::{Steps, ensure_image};
use crate::config::Config;
use crate::request::arguments::Arguments;
use crate::request::resolve;
use crate::request::snippets::Snippets;

/// The tool that does the same.
pub(super) const EXECUTE_CODE: &str = "execute_code";

/// A program, and how it is run.
pub(super) struct Program {
    /// The arguments of the call.
    pub arguments: Arguments,
    /// The parts that are no arguments.
    pub wanted: Wanted,
    /// The names of the arguments on the command line.
    pub names: Names,
    /// Whether steps before the run are not shown.
    pub is_quiet: bool,
}

/// Runs a program. The inner error is a signal that has stopped it.
///
/// # Errors
///
/// When the arguments can't be used, a policy refuses the program, or the sandbox failed.
pub(super) async fn execute(
    config: &Arc<Config>,
    program: Program,
    mut stop_signal: Pin<&mut impl Future<Output = i32>>,
) -> anyhow::Result<Result<Finished, i32>> {
    let Program { arguments, wanted, names, is_quiet } = program;
    // Errors of arguments come before anything is started.
    let job = resolve::program(arguments.clone(), config, &Snippets::new(config));
    let language = job.map_err(|error| names.explain(&error))?.language;
    let app = App::new(config).await?;
    // Before the program has to wait for a sandbox, because building an image takes longer than that.
    tokio::select! {
        image = ensure_image(&app.images, &language.sandbox.image.name, is_quiet) => { image?; }
        signal = &mut stop_signal => {
            app.give_up().await?;
            return Ok(Err(signal));
        }
    };
    let own = OwnCalls::start(&app, config)?;
    let steps = Steps::of_packages(&arguments.packages);
    let receiver = (!is_quiet).then(|| steps.receiver());
    let call = Call { client: Client::Host, watch: None, steps: receiver };
    let mut note = Note::default();
    let ended = tokio::select! {
        ran = steps.follow(own.calls.run_command_line(arguments, wanted, &call, &mut note)) => Ok(ran),
        signal = stop_signal => Err(signal),
    };
    let closed = own.close(Duration::ZERO).await;
    let ran = match ended {
        Ok(ran) => ran,
        Err(signal) => {
            closed?;
            return Ok(Err(signal));
        }
    };
    let finished = ran.map_err(|error| explain(error, &names, &language.name))?;
    closed?;
    Ok(Ok(finished))
}

/// An error in the words of the command line.
fn explain(error: CallError, names: &Names, language: &str) -> anyhow::Error {
    match error {
        CallError::Invalid(error) => names.explain(&error),
        CallError::Forbidden { found, .. } => anyhow!(
            "the policy for {language} forbids something in the program, so it was not run:\n{found}"
        ),
        error => error.into(),
    }
}
