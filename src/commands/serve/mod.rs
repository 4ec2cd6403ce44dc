//! `isolator serve`: serves MCP on standard input and output, or over HTTP, until a signal comes or the host closes
//! the input.

mod reload;
mod stop;

use clap::Args;
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use isolator_pool::engine::images::PullPolicy;
use isolator_pool::engine::{Call, bounded};
use isolator_pool::pool::pools::Pools;
use isolator_pool::sandbox::sweep::Swept;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;

use crate::address::ListenAddress;
use crate::app::{App, PoolFill};
use crate::audit::Audit;
use crate::calls::{Clients, Setup};
use crate::commands::image::how_to_fetch;
use crate::commands::notify::Service;
use crate::commands::serve::reload::{Load, Reloading};
use crate::commands::signals::{HangUps, stop_signal_but_hang_up};
use crate::commands::{Work, complain, isolator, require_output};
use crate::config::Config;
use crate::log;
use crate::mcp::server::Server;
use crate::packages::Packages;
use crate::packages::store::Store;
use crate::sessions::journals::Journals;
use crate::traces::Traces;
use crate::transport::agent_check::AgentCheck;
use crate::transport::http::reload::{Asked, Reload};
use crate::transport::http::{self, Access, Admin, Ending, Health, Http, Local, Serving};
use crate::transport::message::Limits;
use crate::transport::stdio::{Stdio, Streams};

/// Arguments of `isolator serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Serve over streamable HTTP at this address, path /mcp; without ADDRESS only for this machine.
    /// Clients on other machines need a token
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub http: Option<ListenAddress>,
    /// Also listen at this address for operators: metrics at /metrics, health at /healthz and /readyz; without ADDRESS only
    /// for this machine
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub admin: Option<ListenAddress>,
    /// Make no Unix socket for commands of the same user
    #[arg(long)]
    pub no_socket: bool,
}

/// How long running programs can go on when the host stops the server: it hardly waits for their answers.
const DRAIN: Duration = Duration::from_secs(2);

/// How long the calls of the host can take after the end of the input, while the host still reads the answers.
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

/// Serves until a signal or the host stops it, then removes everything. `load` loads the configuration, now and at each reload.
pub fn serve(
    load: impl Fn() -> anyhow::Result<Config> + Send + Sync + 'static,
    arguments: ServeArguments,
) -> Work {
    // What is generic is compiled by the caller, so no more than this is.
    serve_with(Arc::new(load), arguments)
}

fn serve_with(load: Load, arguments: ServeArguments) -> Work {
    Box::pin(async move {
        let ServeArguments { http: address, admin, no_socket } = arguments;
        let load: Load = Arc::new(move || {
            let mut config = load()?;
            config.admin.address = admin.or(config.admin.address);
            Ok(config)
        });
        let config = load()?;
        log::set_level(config.log.level.as_str());
        match address {
            None => {
                if std::io::stdin().is_terminal() {
                    complain(ON_A_TERMINAL);
                }
                serve_host(config, load, !no_socket).await
            }
            Some(address) => serve_clients(config, load, address, !no_socket).await,
        }
    })
}

/// A server on its pools, with all that can be changed while it runs.
struct Started {
    app: App,
    server: Server,
    reloading: Reloading,
    asked: Asked,
    reload: Reload,
}

/// Starts the pools of a configuration, and a server on them.
async fn start(
    config: Config,
    load: Load,
    clients: Clients,
    access: Option<Access>,
    admin: Option<&Admin>,
) -> anyhow::Result<Started> {
    let audit = Audit::open(&config.audit)?;
    let journals = Journals::open(&config.sessions, config.node.node())?;
    let app = App::new(&config).await?;
    let pools = Arc::new(app.start_pools(&config, PoolFill::AsConfigured)?);
    let config = Arc::new(config);
    let store = reload::store(&config).await?;
    let packages = packages(&config, &pools, store.clone(), clients);
    let transport = if access.is_some() { "tcp" } else { "pipe" };
    let traces = Traces::from_environment(transport);
    let server = Server::new(Setup { config, pools, packages, audit, traces, journals }, clients);
    let (reload, asked) = http::reload::channel();
    let reloading = Reloading {
        load,
        server: server.clone(),
        access: access.into_iter().collect(),
        operators: admin.map(Admin::operators),
        store,
        reloads: Arc::default(),
        service: None,
    };
    Ok(Started { app, server, reloading, asked, reload })
}

impl Started {
    /// Answers operators until the result is dropped.
    fn listen(&self, admin: Option<Admin>, health: &Health) -> Option<Serving> {
        admin.map(|admin| {
            let reloads = Arc::clone(&self.reloading.reloads);
            let metrics = self.server.metrics(self.app.kind.as_str(), reloads);
            admin.start(metrics, health.clone(), self.reload.clone())
        })
    }

    /// Whether it can serve calls.
    fn health(&self) -> Health {
        let access = self.reloading.access.first().cloned();
        Health::new(self.server.clone(), access)
    }
}

/// Serves the one host that started the process.
async fn serve_host(config: Config, load: Load, has_socket: bool) -> anyhow::Result<ExitCode> {
    require_output()?;
    // First, so that its errors come before anything is started.
    let admin = Admin::bind(&config).await?;
    // Before anything is created that a signal would leave behind.
    let (stop_signal, hang_ups) = (stop_signal_but_hang_up()?, HangUps::new()?);
    let limits = Limits::new(config.limits.max_files);
    let started = start(config, load, Clients::One, None, admin.as_ref()).await?;
    let changes = started.server.changes();
    let _admin = started.listen(admin, &started.health());
    let local = has_socket.then(|| Local::start(&started.server)).flatten();
    let Started { app, server, mut reloading, asked, .. } = started;
    reloading.access.extend(local.as_ref().map(Local::access));
    let own = server.clone();
    let mut stop_signal = std::pin::pin!(async {
        tokio::select! {
            signal = stop_signal => signal,
            signal = reloading.run(hang_ups, asked) => signal,
        }
    });

    let streams = Streams::default();
    let mut session = std::pin::pin!(async {
        let ended = session(server, Stdio::new(streams.clone(), limits)).await;
        // Commands get the same time for their programs as the host.
        if let Some(local) = &local {
            let _ = tokio::time::timeout(FINISH, local.finish()).await;
        }
        ended
    });
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
                if let Some(local) = &local {
                    local.drain();
                }
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
        own.notice().give();
        if let Some(local) = &local {
            local.drain();
        }
        // Otherwise the server would wait for clients that wait for changes.
        changes.close();
        close(&own, drain).await
    };
    tokio::select! {
        ended = &mut session => {
            close(&own, Duration::ZERO).await?;
            ended?;
        }
        // The session goes on meanwhile: programs that end during the drain are answered.
        stopped = stop => {
            stopped?;
            // A client that has not read its answer by now does not get it.
            let _ = tokio::time::timeout(ANSWERS_TIMEOUT, session).await;
        }
        // This runs next to the session, because a host waits for its first answer.
        never = check_and_sweep(&app, &own) => match never {},
    }
    write_out(&own).await;
    match streams.failure() {
        Some(error) => {
            Err(anyhow!("standard output, where the host reads answers, can't be written: {error}"))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Serves clients over HTTP.
async fn serve_clients(
    config: Config,
    load: Load,
    address: ListenAddress,
    has_socket: bool,
) -> anyhow::Result<ExitCode> {
    // First, so that its errors come before anything is started.
    let http = Http::bind(&address.candidates(), &config).await?;
    let admin = Admin::bind(&config).await?;
    let agent_check = AgentCheck::bind(&config).await?;
    let (stop_signal, hang_ups) = (stop_signal_but_hang_up()?, HangUps::new()?);
    let access = Some(http.access());
    let started = start(config, load, Clients::Several, access, admin.as_ref()).await?;
    tracing::info!(url = http.url(), "listening");
    let service = Arc::new(Service::new(http.url()));
    service.ready();

    let ending = Ending::default();
    let health = started.health();
    let _admin = started.listen(admin, &health);
    let _agent_check = agent_check.map(|agent_check| agent_check.start(health.clone()));
    let local = has_socket.then(|| Local::start(&started.server)).flatten();
    let look = {
        let health = health.clone();
        move || drop(health.not_ready())
    };
    let Started { app, server, mut reloading, asked, .. } = started;
    reloading.access.extend(local.as_ref().map(Local::access));
    reloading.service = Some(Arc::clone(&service));
    let (own, config) = (server.clone(), server.setup().config);
    let mut serving = std::pin::pin!(http.serve(server, health, &config, ending.clone()));
    let stop = async {
        let signal = tokio::select! {
            signal = stop_signal => signal,
            signal = reloading.run(hang_ups, asked) => signal,
        };
        tracing::info!(signal, "stopping");
        stop::stop(&own, &service, local.as_ref(), &ending).await
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
        never = check_and_sweep(&app, &own) => match never {},
        never = service.stay_alive(look) => match never {},
    }
    write_out(&own).await;
    Ok(ExitCode::SUCCESS)
}

/// The sets of packages. Those of the configuration that are not there are built from now on.
fn packages(
    config: &Arc<Config>,
    pools: &Arc<Pools>,
    store: Option<Store>,
    clients: Clients,
) -> Packages {
    for (key, message) in config.packages.warnings() {
        tracing::warn!("{key}: {message}");
    }
    let has_one_client = clients == Clients::One;
    let Some(store) = store else {
        return Packages::unused(Arc::clone(config), has_one_client);
    };
    let packages = Packages::new(Arc::clone(config), Arc::clone(pools), store, has_one_client);
    packages.build_missing();
    packages
}

/// Ends running programs and builds, and removes everything.
async fn close(server: &Server, drain: Duration) -> anyhow::Result<()> {
    let Setup { pools, packages, .. } = server.setup();
    let (closed, ()) = tokio::join!(pools.close(drain), packages.close());
    closed.context("not everything was removed; the next start or `isolator gc` removes the rest")
}

/// Lets the audit log, the traces and the journals write what waits.
async fn write_out(server: &Server) {
    let Setup { audit, traces, journals, .. } = server.setup();
    tokio::join!(audit.close(), traces.close(), journals.close());
}

/// Logs which engine is used and which images are missing, and removes what dead instances left behind. Never returns.
async fn check_and_sweep(app: &App, server: &Server) -> Infallible {
    let Setup { config, .. } = server.setup();
    match bounded(Call::Check, app.engine.check()).await {
        Ok(engine) => {
            tracing::info!(engine, "using the engine");
            tell_missing_images(app, &config).await;
            let Swept { sandboxes, shared } = app.sweep().await;
            server.setup().pools.shared_counts().swept.add((sandboxes + shared) as u64);
        }
        // Calls are answered with this error until the engine is available.
        Err(error) => {
            let doctor = format!("{} doctor", isolator(&config, app.kind));
            tracing::error!(%error, "no engine yet; see `{doctor}`");
            server.setup().pools.note_failure(&error);
        }
    }
    std::future::pending().await
}

/// Says once what to do about images that are missing, if the server does not try to get them by itself, which tells why it fails.
async fn tell_missing_images(app: &App, config: &Config) {
    if config.images.policy != PullPolicy::Never {
        return;
    }
    for language in config.languages.values() {
        let image = &language.sandbox.image.name;
        if !matches!(app.images.find(image).await, Ok(None)) {
            continue;
        }
        match how_to_fetch(config, app, language).await {
            Ok(run) => {
                tracing::warn!(image, "the image of {} is missing; run `{run}`", language.name);
            }
            Err(why) => tracing::warn!(image, "the image of {} is missing: {why}", language.name),
        }
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
