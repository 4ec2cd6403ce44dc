//! `isolator drain`: takes a server out of use, so that load balancers send its clients elsewhere.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use http::Method;

use crate::commands::operators::{AskedServer, OperatorArguments};
use crate::commands::{Work, options, say};
use crate::config::Config;
use crate::transport::http::drain::Draining;

/// How long the server has for each answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Arguments of `isolator drain`.
#[derive(Debug, Args)]
pub struct DrainArguments {
    #[command(flatten)]
    operator: OperatorArguments,
    /// Wait until no call runs or waits, at most this long; without DURATION at most an hour
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1h",
        value_parser = options::duration
    )]
    wait: Option<Duration>,
}

/// Asks the server, and prints what it still does. `load` loads the configuration, in which the address may be.
pub fn drain(
    load: impl FnOnce() -> anyhow::Result<Config> + 'static,
    arguments: DrainArguments,
) -> Work {
    // As with `serve`.
    drain_with(Box::new(load), arguments)
}

fn drain_with(
    load: Box<dyn FnOnce() -> anyhow::Result<Config>>,
    DrainArguments { operator, wait }: DrainArguments,
) -> Work {
    Box::pin(async move {
        let server = AskedServer::named(&operator, load, "drain")?;
        let mut draining = ask(&server).await?;
        say(&format!(
            "the server is not ready anymore, and still serves calls; {}",
            described(draining)
        ))?;
        let Some(longest) = wait else { return Ok(ExitCode::SUCCESS) };
        let began = Instant::now();
        while draining.has_calls() && began.elapsed() < longest {
            tokio::time::sleep(ASK_AGAIN).await;
            draining = ask(&server).await?;
        }
        let end = if draining.has_calls() { "calls still run" } else { "no call runs" };
        say(&format!("{end}; {}", described(draining)))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn ask(server: &AskedServer) -> anyhow::Result<Draining> {
    let answer = server.ask(Method::POST, "drain", TIMEOUT).await?;
    if answer.status != 200 {
        return Err(answer.unexpected());
    }
    serde_json::from_str(&answer.body).context("the answer is not one of a drain")
}

fn described(Draining { running, waiting, sessions }: Draining) -> String {
    format!("running: {running}, waiting: {waiting}, open sessions: {sessions}")
}
