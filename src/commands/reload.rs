//! `isolator reload`: a server loads its configuration again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use isolator_pool::quote::escaped;

use crate::commands::operators::{AskedServer, OperatorArguments};
use crate::commands::{Work, complain, describe, say};
use crate::config::{Config, ConfigError};
use crate::transport::http::reload::Reloaded;

/// How long the server has: it waits until new pools are full.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The exit code if the configuration is wrong.
const WRONG: u8 = 1;

/// Asks the server, and prints what has changed. `load` loads the configuration, which may be the wrong one: it is looked into
/// only for the address.
pub fn reload(
    load: impl FnOnce() -> anyhow::Result<Config> + 'static,
    arguments: OperatorArguments,
) -> Work {
    // As with `serve`.
    reload_with(Box::new(load), arguments)
}

fn reload_with(
    load: Box<dyn FnOnce() -> anyhow::Result<Config>>,
    arguments: OperatorArguments,
) -> Work {
    Box::pin(async move {
        let server = match AskedServer::named(&arguments, load, "reload") {
            // Without an address on the command line, the file that is wrong is where the address is.
            Err(error) if error.is::<ConfigError>() => {
                complain(&format!("isolator: the server was not asked: {}", describe(&error)));
                return Ok(ExitCode::from(WRONG));
            }
            server => server?,
        };
        let answer = server.ask(Method::POST, "reload", TIMEOUT).await?;
        match answer.status {
            200 => {
                let reloaded = serde_json::from_str(&answer.body);
                tell(&reloaded.context("the answer is not one of a reload")?)?;
                Ok(ExitCode::SUCCESS)
            }
            422 => {
                let lines = answer.body.lines().map(escaped).collect::<Vec<_>>().join("\n");
                complain(&format!("isolator: nothing has changed: {lines}"));
                Ok(ExitCode::from(WRONG))
            }
            _ => Err(answer.unexpected()),
        }
    })
}

fn tell(Reloaded { changed, needs_restart }: &Reloaded) -> anyhow::Result<()> {
    match changed.is_empty() {
        true => say("the configuration was loaded again; no key has another value")?,
        false => say(&format!("changed: {}", changed.join(", ")))?,
    }
    if !needs_restart.is_empty() {
        let keys = needs_restart.join(", ");
        say(&format!("not before the server is started again: {keys}"))?;
    }
    Ok(())
}
