//! `isolator serve`: serves MCP on standard input and output, or over HTTP, until a signal comes or the host closes
//! the input.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use isolator_pool::engine::{Call, bounded};
use isolator_pool::pool::pools::Pools;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;

use crate::app::{App, PoolFill};
use crate::commands::address::HttpAddress;
use crate::commands::cli::ServeArguments;
use crate::commands::signals::stop_signal;
use crate::commands::{Work, complain, require_output};
use crate::config::Config;
use crate::mcp::calls::Clients;
use crate::mcp::server::Server;
use crate::transport::http::{Ending, Http};
use crate::transport::message::Limits;
use crate::transport::stdio::{Stdio, Streams};

/// How long running programs can go on when the host stops the server: it hardly waits for their answers.
const DRAIN: Duration = Duration::from_secs(2);

/// How long what the host has asked for can take after the end of the input, while somebody reads the answers.
const FINISH: Duration = Duration::from_secs(10);

/// How long sending the last answers can take once everything is removed.
const ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);

/// For a user who started the server by hand. No host has a terminal as the other end.
const ON_A_TERMINAL: &str =
    "isolator: waiting for MCP messages on standard input, which is a terminal. \
     Press Ctrl-C to stop. Usually a host starts this command:
  isolator install HOST       adds it to a host such as claude-code or cursor
  isolator serve --http 8000  serves clients that connect to http://127.0.0.1:8000/mcp
  isolator run FILE           runs a program";

/// Serves until it is told to stop, then removes everything.
pub fn serve(config: Config, arguments: ServeArguments) -> Work {
    Box::pin(async move {
        match arguments.http {
            None => {
                if std::io::stdin().is_terminal() {
                    complain(ON_A_TERMINAL);
                }
                serve_host(config).await
            }
            Some(address) => serve_clients(config, address).await,
        }
    })
}

/// Serves the one host that started the process.
async fn serve_host(config: Config) -> anyhow::Result<ExitCode> {
    require_output()?;
    let app = App::new(&config).await?;
    // Before anything is created that a signal would leave behind.
    let mut stop_signal = std::pin::pin!(stop_signal()?);
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let limits = Limits::new(config.limits.files.files);
    let server = Server::new(Arc::new(config), Arc::clone(&pools), Clients::One);
    let changes = server.changes();

    let streams = Streams::default();
    let mut session = std::pin::pin!(session(server, Stdio::new(streams.clone(), limits)));
    let stop = async {
        let drain = tokio::select! {
            signal = &mut stop_signal => {
                tracing::info!(signal, "stopping");
                DRAIN
            }
            () = streams.output_failed.cancelled() => {
                tracing::info!("the host reads no answers anymore; stopping");
                DRAIN
            }
            () = streams.input_ended.cancelled() => {
                tracing::info!("the input has ended; finishing what was asked");
                // Clients that wait for changes are answered with that.
                changes.close();
                // The session ends when everything is answered.
                tokio::select! {
                    signal = stop_signal => tracing::info!(signal, "stopping"),
                    () = streams.output_failed.cancelled() => {}
                    () = tokio::time::sleep(FINISH) => {
                        tracing::warn!("there are calls that take too long; stopping");
                    }
                }
                Duration::ZERO
            }
        };
        // Otherwise the server would wait for clients that wait for changes.
        changes.close();
        close(&pools, drain).await
    };
    tokio::select! {
        ended = &mut session => {
            close(&pools, Duration::ZERO).await?;
            ended?;
        }
        // The session goes on meanwhile: programs that end during the drain are answered.
        stopped = stop => {
            stopped?;
            // A client that has not read its answer by now does not get it.
            let _ = tokio::time::timeout(ANSWERS_TIMEOUT, session).await;
        }
        // This runs next to the session, because a host waits for its first answer.
        never = check_and_sweep(&app) => match never {},
    }
    match streams.failure() {
        Some(error) => {
            Err(anyhow!("standard output, where the host reads answers, can't be written: {error}"))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Serves clients over HTTP.
async fn serve_clients(config: Config, address: HttpAddress) -> anyhow::Result<ExitCode> {
    // First, so that its errors come before anything is started.
    let http = Http::bind(&address.candidates(), &config).await?;
    let app = App::new(&config).await?;
    let stop_signal = stop_signal()?;
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let config = Arc::new(config);
    let server = Server::new(Arc::clone(&config), Arc::clone(&pools), Clients::Several);
    let changes = server.changes();
    tracing::info!(url = http.url(), "listening");

    let ending = Ending::default();
    let mut serving =
        std::pin::pin!(http.serve(server, Arc::clone(&pools), &config, ending.clone()));
    let stop = async {
        let signal = stop_signal.await;
        tracing::info!(signal, "stopping");
        ending.draining.cancel();
        changes.close();
        let closed = close(&pools, config.http.drain).await;
        // Calls are refused by now, and those that were running have been answered.
        ending.answers.close();
        let _ = tokio::time::timeout(ANSWERS_TIMEOUT, ending.answers.wait()).await;
        ending.stop.cancel();
        closed
    };
    tokio::select! {
        () = &mut serving => anyhow::bail!("the server stopped listening"),
        stopped = stop => {
            // A client that has not read its answer by now does not get it.
            if tokio::time::timeout(ANSWERS_TIMEOUT, &mut serving).await.is_err() {
                ending.end.cancel();
                serving.await;
            }
            stopped?;
        }
        never = check_and_sweep(&app) => match never {},
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends running programs, and removes everything.
async fn close(pools: &Pools, drain: Duration) -> anyhow::Result<()> {
    let closed = pools.close(drain).await;
    closed.context("not everything was removed; the next start or `isolator gc` removes the rest")
}

/// Logs which engine is used, and removes what dead instances left behind. Never returns.
async fn check_and_sweep(app: &App) -> Infallible {
    match bounded(Call::Check, app.engine.check()).await {
        Ok(engine) => {
            tracing::info!(engine, "using the engine");
            app.sweep().await;
        }
        // Calls are answered with this error until the engine is available.
        Err(error) => tracing::error!(%error, "no engine yet; see `isolator doctor`"),
    }
    std::future::pending().await
}

async fn session(server: Server, transport: Stdio) -> anyhow::Result<()> {
    match server.serve(transport).await {
        Ok(service) => {
            service.waiting().await?;
            Ok(())
        }
        // A host may disconnect before it has sent anything.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
