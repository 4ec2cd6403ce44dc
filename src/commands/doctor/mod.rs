//! `isolator doctor`: what is there, what is missing, and how to fix it.

mod apis;
mod check;
mod cpu;
mod engine;
mod findings;
mod host;
mod journals;
mod kernel;
mod memory;
mod packages;
mod runc;
#[cfg(test)]
mod tests;

use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::docker::EngineAddress;
use isolator_pool::engine::preload::PreloadStatus;
use isolator_pool::engine::{Call, EngineError, Facts, Warning, bounded};
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Status;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use tempfile::TempDir;

use self::findings::Findings;
use self::host::Surroundings;
pub use self::host::names_of_checks;
pub(super) use self::packages::missing_tools;
use crate::app::{App, PoolFill, pool_specs};
use crate::commands::advice::how_to_get_snippets;
use crate::commands::image::how_to_fetch;
use crate::commands::signals::{stop_signal, stopped_by};
use crate::commands::{Work, complain, describe, isolator};
use crate::config::{Config, EngineKind, Language};
use crate::descriptors::Plan;

/// Arguments of `isolator doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Also check whether this host is set up to run hostile programs. The exit code is 1 as well if
    /// something is found that is not accepted
    #[arg(long)]
    pub production: bool,
    /// Accept what a check of --production finds; can be given several times
    #[arg(long, value_name = "NAME", requires = "production", value_parser = PossibleValuesParser::new(names_of_checks()))]
    pub accept: Vec<String>,
}

/// How long to wait for a sandbox, and how often to check for one.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Checks everything that a request needs, and runs one in each language. Also checks the host, if it is to run
/// hostile programs. What one check finds keeps no other from being made.
pub fn doctor(config: Config, arguments: DoctorArguments) -> Work {
    Box::pin(async move {
        let mut stop_signal = pin!(stop_signal()?);
        let mut findings = Findings::default();
        findings.part("configuration");
        configuration(&config, &mut findings);
        findings.part("engine");
        let begun = begin(&config, &mut findings).await;
        let is_embedded =
            begun.as_ref().is_some_and(|begun| begun.app.kind == EngineKind::Embedded);
        let mut surroundings = Surroundings::new(&config, is_embedded);
        if let Some(Begun { app, .. }) = &begun
            && let Err(signal) =
                engine(&config, app, &mut surroundings, stop_signal.as_mut(), &mut findings).await
        {
            complain("isolator: stopped; the sandboxes of the checks are removed");
            return Ok(stopped_by(signal));
        }
        tokio::select! {
            () = async {
                packages::packages(&config, &mut findings).await;
                journals::journals(&config, &mut findings).await;
            } => {}
            signal = stop_signal => return Ok(stopped_by(signal)),
        }
        apis::clients(&config, &mut findings);
        findings.part("host");
        descriptors(&config, &mut findings);
        if arguments.production {
            surroundings.check_all(&arguments.accept, &mut findings);
        } else {
            surroundings.check_core_dumps(&mut findings);
        }
        findings.conclude()
    })
}

fn configuration(config: &Config, findings: &mut Findings) {
    match &config.file {
        Some(file) => findings.fine(&format!("{} is valid", file.display())),
        None => findings.fine("no file, so the defaults apply (`isolator config init` writes one)"),
    }
    if !config.prompts.is_dir() {
        let what = format!("{} does not exist, so there are no snippets", config.prompts.display());
        findings.warn(&what, &how_to_get_snippets(config));
    }
}

/// The engine, and a directory for the state of the checks if the usual one can't be written.
struct Begun {
    app: App,
    _state: Option<TempDir>,
}

/// Finds the engine.
async fn begin(config: &Config, findings: &mut Findings) -> Option<Begun> {
    let error = match App::new(config).await {
        Ok(app) => return Some(Begun { app, _state: None }),
        Err(error) => error,
    };
    let elsewhere = async {
        let state = tempfile::tempdir()?;
        let program = std::env::current_exe()?;
        let app = App::in_state(state.path(), config.engine.kind, config, program).await?;
        anyhow::Ok(Begun { app, _state: Some(state) })
    };
    let begun = elsewhere.await.ok();
    let fix = match &begun {
        Some(_) => "the checks below have a temporary directory",
        None => "fix what the error says",
    };
    findings.missing(&describe(&error), fix);
    begun
}

/// Says how many file descriptors there are, and for how many connections they suffice.
fn descriptors(config: &Config, findings: &mut Findings) {
    let Plan { limit, needed, connections } = Plan::new(config);
    let configured = config.http.max_connections;
    let what = format!(
        "{limit} file descriptors: up to {needed} for sandboxes and the server, so `serve --http` can have {connections} \
         of {configured} connections"
    );
    if connections == configured {
        return findings.fine(&what);
    }
    findings.warn(
        &what,
        "raise the hard limit to the sum of both (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of Docker), or \
         lower http.maxConnections or the sizes of pools",
    );
}

/// Checks the engine and, if it works, what is made with it. Returns the signal that has ended it, if one has.
async fn engine(
    config: &Config,
    app: &App,
    surroundings: &mut Surroundings<'_>,
    stop: Pin<&mut impl Future<Output = i32>>,
    findings: &mut Findings,
) -> Result<(), i32> {
    match described(app).await {
        Ok((engine, warnings, facts)) => {
            findings.fine(&engine);
            for warning in &warnings {
                findings.warn(&warning.what, &warning.fix);
            }
            if let (EngineKind::Auto, EngineKind::Embedded, Some(socket)) =
                (config.engine.kind, app.kind, forbidden_socket(config))
            {
                let socket = socket.display();
                findings.warn(&format!("this user can't use Docker's socket {socket}"), NO_PERMISSION);
            }
            surroundings.engine_is(facts, warnings.len());
            let present = images(config, app, findings).await;
            if !present.is_empty() {
                return sandboxes(config, app, &present, stop, findings).await;
            }
        }
        Err(error @ EngineError::Unusable(_)) => {
            findings.missing(
                &error.to_string(),
                "fix that, or use a Docker engine instead: install and start one (Debian: apt-get install docker.io)",
            );
            images(config, app, findings).await;
        }
        Err(_) if let Some(socket) = forbidden_socket(config) => findings.missing(
            &format!("Docker's socket {} is there, but this user can't use it", socket.display()),
            NO_PERMISSION,
        ),
        Err(error) => findings.missing(
            &error.to_string(),
            "install and start Docker (Debian: apt-get install docker.io), give this user access to its socket, or \
             set its address in engine.host or DOCKER_HOST",
        ),
    }
    Ok(())
}

/// Advice if a user can't use Docker's socket.
const NO_PERMISSION: &str = "add the user to the socket's group (usually: usermod -aG docker USER) and log in again, which \
    makes the user as good as root, or use the embedded engine: --engine embedded";

/// The socket of Docker, if it is there and this user has no permission to use it.
fn forbidden_socket(config: &Config) -> Option<PathBuf> {
    let addresses = match EngineAddress::named(config.engine.host.as_deref()) {
        Ok(Some(address)) => vec![address],
        Ok(None) | Err(_) => EngineAddress::usual().0,
    };
    addresses.into_iter().find_map(|address| {
        let EngineAddress::Unix(socket) = address else { return None };
        let error = std::os::unix::net::UnixStream::connect(&socket).err()?;
        (error.kind() == std::io::ErrorKind::PermissionDenied).then_some(socket)
    })
}

/// The engine in one line, its warnings, and what the checks of the host need to know of it.
async fn described(app: &App) -> Result<(String, Vec<Warning>, Facts), EngineError> {
    let line = bounded(Call::Check, app.engine.check()).await?;
    let warnings = bounded(Call::Check, app.engine.warnings()).await?;
    let facts = bounded(Call::Check, app.engine.facts()).await?;
    Ok((line, warnings, facts))
}

/// Looks for the images. Returns the languages whose image is there.
async fn images<'a>(
    config: &'a Config,
    app: &App,
    findings: &mut Findings,
) -> Vec<&'a Arc<Language>> {
    findings.part("images");
    let mut present = Vec::new();
    for language in config.languages.values() {
        let name = &language.sandbox.image.name;
        match app.images.find(name).await {
            Ok(Some(_)) => {
                findings.fine(&format!("{}: {name}", language.name));
                present.push(language);
            }
            Ok(None) => {
                let fix = how_to_fetch(config, app, language).await.unwrap_or_else(|why| why);
                findings.missing(&format!("{}: {name}", language.name), &fix);
            }
            Err(error) => {
                let what = format!("{}: {error}", language.name);
                findings.missing(&what, "fix what the error says");
            }
        }
    }
    present
}

/// Runs the command of each of the languages in a sandbox, with an empty program. Returns the signal that has ended it, if one has.
async fn sandboxes(
    config: &Config,
    app: &App,
    languages: &[&Arc<Language>],
    stop: Pin<&mut impl Future<Output = i32>>,
    findings: &mut Findings,
) -> Result<(), i32> {
    findings.part("sandboxes");
    let mut specs = pool_specs(config, PoolFill::Few(1));
    specs.retain(|name, _| languages.iter().any(|language| language.name == *name));
    let pools = match app.start_some(config, specs) {
        Ok(pools) => pools,
        Err(error) => {
            findings.missing(&error.to_string(), "see docs/engines.md");
            return Ok(());
        }
    };
    let ended = tokio::select! {
        () = programs(config, languages, &pools, findings) => Ok(()),
        signal = stop => Err(signal),
    };
    if let Err(error) = pools.close(Duration::ZERO).await {
        let fix = format!("{} gc", isolator(config, app.kind));
        findings.missing(&format!("sandboxes can't be removed: {error}"), &fix);
    }
    ended
}

async fn programs(
    config: &Config,
    languages: &[&Arc<Language>],
    pools: &Pools,
    findings: &mut Findings,
) {
    let mut working = Vec::new();
    for language in languages {
        if run_probe(language, config, pools, Turn::First, findings).await {
            working.push(language);
        }
    }
    let mut ready = Vec::new();
    for language in working {
        if waits(language, pools, findings).await {
            ready.push(language);
        }
    }
    memory(pools, findings).await;
    // These are as fast as those of a server that has been running for a while.
    for language in ready {
        run_probe(language, config, pools, Turn::Later, findings).await;
    }
}

/// Whether a program is the first of its language.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Later,
}

/// Runs a program that does nothing, and says how long it took. Returns whether it could run.
async fn run_probe(
    language: &Language,
    config: &Config,
    pools: &Pools,
    turn: Turn,
    findings: &mut Findings,
) -> bool {
    let name = &language.name;
    match pools.execute(name, &Client::Host, &probe(language, config)).await {
        Ok((outcome, receipt)) => {
            let took = receipt.checkout + receipt.run.total;
            let start = receipt.start.as_str();
            let what = match turn {
                // It may have waited for its sandbox, and its interpreter comes from the disk.
                Turn::First => format!(
                    "{name}: a sandbox works; the first program took {took:.0?} ({start} start)"
                ),
                Turn::Later => format!("{name}: the next program took {took:.0?} ({start} start)"),
            };
            if outcome.status == Status::Timeout {
                findings.warn(&what, "that is slow; is the machine busy?");
            } else {
                findings.fine(&what);
            }
            true
        }
        Err(error) => {
            findings.missing(&format!("{name}: {error}"), "fix what the error says");
            false
        }
    }
}

/// Waits until a sandbox of a language is ready. Says how much memory its preloaded interpreters take, or why one is
/// not used.
async fn waits(language: &Language, pools: &Pools, findings: &mut Findings) -> bool {
    let name = &language.name;
    let ready = tokio::time::timeout(READY_TIMEOUT, async {
        loop {
            match pools.status().remove(name.as_str()) {
                Some(pool) if pool.paused == 0 => tokio::time::sleep(POLL_INTERVAL).await,
                status => return status.map(|pool| pool.preload).unwrap_or_default(),
            }
        }
    });
    let Ok(PreloadStatus { memory, complaints }) = ready.await else {
        findings.warn(&format!("{name}: no sandbox is ready after {READY_TIMEOUT:?}"), "try again");
        return false;
    };
    if memory > 0 {
        let mib = memory.div_ceil(1 << 20);
        findings.fine(&format!("{name}: preloaded interpreters take {mib} MiB in each sandbox"));
    }
    for complaint in complaints {
        let fix = format!("programs run, but start slower; see languageSettings.{name}.preload");
        findings.warn(&format!("{name}: {complaint}"), &fix);
    }
    true
}

/// How much memory sandboxes take that wait, and templates.
async fn memory(pools: &Pools, findings: &mut Findings) {
    let memory = pools.memory().await;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    for (name, memory) in &memory {
        let waiting = mib(memory.sandboxes);
        findings.fine(&format!("{name}: a sandbox that waits takes {waiting} MiB (PSS)"));
    }
    if let Some(templates) =
        memory.values().map(|memory| memory.templates).max().filter(|it| *it > 0)
    {
        let templates = mib(templates);
        findings.fine(&format!("the templates of all sandboxes take {templates} MiB (PSS)"));
    }
}

/// Runs an empty file, which is a program in most languages. In the others it at least starts the command.
fn probe(language: &Language, config: &Config) -> RunRequest {
    let mut workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 1, total: 0 });
    // The name was validated with the configuration.
    let file = workspace.add(&language.default_file, Vec::new()).unwrap_or_default();
    let argv = language.argv(&file, std::slice::from_ref(&file), language.sandbox.resources.memory);
    let limits = &config.limits;
    let (timeout, resources) = (limits.default_timeout, language.sandbox.resources);
    RunRequest {
        env: language.env.clone(),
        ..RunRequest::new(argv, workspace.build(), timeout, resources, limits.output())
    }
}
