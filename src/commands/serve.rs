//! `isolator serve`: MCP on standard input and output, until the host closes it, or over HTTP; until a
//! signal comes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::pool::pools::Pools;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio_util::sync::CancellationToken;

use crate::app::{App, PoolFill};
use crate::commands::Work;
use crate::commands::cli::ServeArguments;
use crate::commands::signals::stop_signal;
use crate::config::Config;
use crate::mcp::calls::Clients;
use crate::mcp::server::Server;
use crate::transport::http::{Ending, Http};
use crate::transport::stdio::Stdio;

/// How long running programs may go on when the host has gone or stops the server: it does not wait for
/// their answers any more.
const DRAIN: Duration = Duration::from_secs(2);

/// How long the last answers may take to leave once everything is removed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Serves until it is told to stop, then removes everything.
pub fn serve(config: Config, arguments: ServeArguments) -> Work {
    Box::pin(async move {
        match arguments.http {
            None => serve_host(config).await,
            Some(address) => serve_clients(config, address).await,
        }
    })
}

/// Serves the one host that started the process.
async fn serve_host(config: Config) -> anyhow::Result<ExitCode> {
    let app = App::new(&config).await?;
    // Before there is anything that would be left behind.
    let stop_signal = stop_signal()?;
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let server = Server::new(Arc::new(config), Arc::clone(&pools), Clients::One);
    let changes = server.changes();

    let input_ended = CancellationToken::new();
    let mut session = std::pin::pin!(session(server, Stdio::new(input_ended.clone())));
    let stop = async {
        tokio::select! {
            signal = stop_signal => tracing::info!(signal, "stopping"),
            () = input_ended.cancelled() => tracing::info!("the host has gone, stopping"),
        }
        // Who waits for changes would otherwise be waited for.
        changes.close();
        close(&pools, DRAIN).await
    };
    tokio::select! {
        ended = &mut session => {
            close(&pools, DRAIN).await?;
            ended?;
        }
        // The session goes on meanwhile: what still ends within the drain is answered.
        stopped = stop => {
            stopped?;
            // Who does not read has had the time to.
            let _ = tokio::time::timeout(LAST_WORDS, session).await;
        }
        // A host waits for its first answer, whatever the engine is doing.
        never = look_around(&app) => match never {},
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves whoever comes and may.
async fn serve_clients(config: Config, address: SocketAddr) -> anyhow::Result<ExitCode> {
    // What is wrong with it is told before anything is started.
    let http = Http::bind(address, &config).await?;
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
        let _ = tokio::time::timeout(LAST_WORDS, ending.answers.wait()).await;
        ending.stop.cancel();
        closed
    };
    tokio::select! {
        () = &mut serving => anyhow::bail!("nothing is listened for any more"),
        stopped = stop => {
            // Who does not read has had the time to.
            if tokio::time::timeout(LAST_WORDS, &mut serving).await.is_err() {
                ending.end.cancel();
                serving.await;
            }
            stopped?;
        }
        never = look_around(&app) => match never {},
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends what runs, and removes everything.
async fn close(pools: &Pools, drain: Duration) -> anyhow::Result<()> {
    let closed = pools.close(drain).await;
    closed.context("something is left, which the next start or `isolator gc` removes")
}

/// Says which engine is there and sweeps what dead instances left. Never ends by itself.
async fn look_around(app: &App) -> Infallible {
    match bounded(Call::Check, app.engine.check()).await {
        Ok(engine) => {
            tracing::info!(engine, "using the engine");
            app.sweep().await;
        }
        // Calls are answered with this error until the engine is there.
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
        // A host may change its mind before it has said anything.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
