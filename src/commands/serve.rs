//! `isolator serve`: serves MCP on standard input and output, or over HTTP, until a signal comes or the host closes
//! the input.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::future::BoxFuture;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::pool::pools::Pools;
use isolator_pool::sandbox::sweep::Swept;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio_util::sync::CancellationToken;

use crate::address::ListenAddress;
use crate::app::{App, PoolFill, package_store};
use crate::audit::Audit;
use crate::commands::cli::ServeArguments;
use crate::commands::signals::{HangUps, stop_signal, stop_signal_but_hang_up};
use crate::commands::{Work, complain, require_output};
use crate::config::Config;
use crate::mcp::calls::Clients;
use crate::mcp::server::Server;
use crate::packages::Packages;
use crate::transport::http::{Admin, Ending, Http};
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
pub fn serve(mut config: Config, arguments: ServeArguments) -> Work {
    Box::pin(async move {
        config.admin.address = arguments.admin.or(config.admin.address);
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
    // First, so that its errors come before anything is started.
    let admin = Admin::bind(&config).await?;
    let audit = Audit::open(config.audit.as_ref())?;
    let app = App::new(&config).await?;
    // Before anything is created that a signal would leave behind.
    let mut stop_signal = std::pin::pin!(stop_signal()?);
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let limits = Limits::new(config.limits.files.files);
    let config = Arc::new(config);
    let packages = packages(&config, &pools, Clients::One).await?;
    let (own, clients) = (Arc::clone(&pools), Clients::One);
    let server = Server::new(config, own, packages.clone(), clients, audit.clone());
    let changes = server.changes();
    let draining = CancellationToken::new();
    let _admin = admin.map(|admin| {
        let metrics = server.metrics(app.kind.as_str(), Arc::clone(&pools));
        admin.start(metrics, Arc::clone(&pools), draining.clone())
    });

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
        draining.cancel();
        // Otherwise the server would wait for clients that wait for changes.
        changes.close();
        close(&pools, &packages, drain).await
    };
    tokio::select! {
        ended = &mut session => {
            close(&pools, &packages, Duration::ZERO).await?;
            ended?;
        }
        // The session goes on meanwhile: programs that end during the drain are answered.
        stopped = stop => {
            stopped?;
            // A client that has not read its answer by now does not get it.
            let _ = tokio::time::timeout(ANSWERS_TIMEOUT, session).await;
        }
        // This runs next to the session, because a host waits for its first answer.
        never = check_and_sweep(&app, &pools) => match never {},
    }
    audit.close().await;
    match streams.failure() {
        Some(error) => {
            Err(anyhow!("standard output, where the host reads answers, can't be written: {error}"))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Serves clients over HTTP.
async fn serve_clients(config: Config, address: ListenAddress) -> anyhow::Result<ExitCode> {
    // First, so that its errors come before anything is started.
    let http = Http::bind(&address.candidates(), &config).await?;
    let admin = Admin::bind(&config).await?;
    let audit = Audit::open(config.audit.as_ref())?;
    let app = App::new(&config).await?;
    // With an audit log, SIGHUP is for its file.
    let (stop_signal, mut hang_ups): (BoxFuture<'_, i32>, _) = if config.audit.is_some() {
        (Box::pin(stop_signal_but_hang_up()?), HangUps::new()?)
    } else {
        (Box::pin(stop_signal()?), HangUps::none())
    };
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let config = Arc::new(config);
    let packages = packages(&config, &pools, Clients::Several).await?;
    let (own, of_pools, clients) = (Arc::clone(&config), Arc::clone(&pools), Clients::Several);
    let server = Server::new(own, of_pools, packages.clone(), clients, audit.clone());
    let changes = server.changes();
    tracing::info!(url = http.url(), "listening");

    let ending = Ending::default();
    let _admin = admin.map(|admin| {
        let metrics = server.metrics(app.kind.as_str(), Arc::clone(&pools));
        admin.start(metrics, Arc::clone(&pools), ending.draining.clone())
    });
    let mut serving =
        std::pin::pin!(http.serve(server, Arc::clone(&pools), &config, ending.clone()));
    let stop = async {
        let signal = stop_signal.await;
        tracing::info!(signal, "stopping");
        ending.draining.cancel();
        changes.close();
        let closed = close(&pools, &packages, config.http.drain).await;
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
        never = check_and_sweep(&app, &pools) => match never {},
        never = reopen(&audit, &mut hang_ups) => match never {},
    }
    audit.close().await;
    Ok(ExitCode::SUCCESS)
}

/// The sets of packages. Those of the configuration that are not there are built from now on.
async fn packages(
    config: &Arc<Config>,
    pools: &Arc<Pools>,
    clients: Clients,
) -> anyhow::Result<Packages> {
    for (key, message) in config.packages.warnings() {
        tracing::warn!("{key}: {message}");
    }
    let has_one_client = clients == Clients::One;
    if !config.packages.is_used() {
        return Ok(Packages::unused(Arc::clone(config), has_one_client));
    }
    // What killed builds have left is removed, which may take a while.
    let store = tokio::task::spawn_blocking(package_store).await??;
    let packages = Packages::new(Arc::clone(config), Arc::clone(pools), store, has_one_client);
    packages.build_missing();
    Ok(packages)
}

/// Ends running programs and builds, and removes everything.
async fn close(pools: &Pools, packages: &Packages, drain: Duration) -> anyhow::Result<()> {
    let (closed, ()) = tokio::join!(pools.close(drain), packages.close());
    closed.context("not everything was removed; the next start or `isolator gc` removes the rest")
}

/// Logs which engine is used, and removes what dead instances left behind. Never returns.
async fn check_and_sweep(app: &App, pools: &Pools) -> Infallible {
    match bounded(Call::Check, app.engine.check()).await {
        Ok(engine) => {
            tracing::info!(engine, "using the engine");
            let Swept { sandboxes, shared } = app.sweep().await;
            pools.shared_counts().swept.add((sandboxes + shared) as u64);
        }
        // Calls are answered with this error until the engine is available.
        Err(error) => tracing::error!(%error, "no engine yet; see `isolator doctor`"),
    }
    std::future::pending().await
}

/// Opens the file of the audit log again at each SIGHUP. Never returns.
async fn reopen(audit: &Audit, hang_ups: &mut HangUps) -> Infallible {
    loop {
        hang_ups.next().await;
        audit.reopen();
    }
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
