//! `isolator image`: manages the images of the configured languages.

use clap::Subcommand;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use isolator_pool::engine::images::{Fetched, Former, ListedImage};
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::{Call, bounded};

use crate::app::App;
use crate::commands::signals::{stop_signal, stopped_by};
use crate::commands::steps::Steps;
use crate::commands::{Work, complain, isolator, say};
use crate::config::{Config, EngineKind, Language};

/// The commands for images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images of the languages, whether they are there, and Isolator's other images
    Ls,
    /// Build the images that come with Isolator, unless they are there and nothing has changed
    Build {
        /// The languages; if none is given, all with such an image
        languages: Vec<String>,
        /// Build what is unchanged, too, from a new base image: for updates of Debian's packages
        #[arg(long)]
        force: bool,
        /// Print all lines of the builds
        #[arg(long, short)]
        verbose: bool,
    },
    /// Pull images from a registry
    Pull {
        /// The languages, or names of images; if none is given, all languages whose image is pulled
        #[arg(value_name = "LANGUAGE|IMAGE")]
        names: Vec<String>,
        /// Print all lines of the pulls
        #[arg(long, short)]
        verbose: bool,
    },
    /// Import images from a file: the output of docker save, an OCI layout, or a root file system
    Import {
        /// The file, the directory of an OCI layout, or - for standard input
        file: PathBuf,
        /// Name for the image; required for a root file system
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove images
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
    /// Remove Isolator's images that newer ones have replaced, and what interrupted work left behind
    Prune,
}

/// Runs the command. A signal that asks to stop ends what it does, and removes what is unfinished.
pub fn image(config: Config, command: ImageCommand) -> Work {
    Box::pin(async move {
        let app = App::new(&config).await?;
        let stop_signal = stop_signal()?;
        let signal = tokio::select! {
            ended = run(&config, &app, command) => return ended,
            signal = stop_signal => signal,
        };
        let left = match (app.give_up().await, app.kind) {
            (Ok(()), EngineKind::Docker) => {
                "the engine keeps the steps and layers that are done, and the same command goes on from there"
                    .to_owned()
            }
            (Ok(()), _) => "nothing unfinished is left, and the same command begins it again".to_owned(),
            (Err(error), _) => format!(
                "what is unfinished could not be removed: {error}; `{} gc` tries again",
                isolator(&config, app.kind)
            ),
        };
        complain(&format!("isolator: stopped; {left}"));
        Ok(stopped_by(signal))
    })
}

async fn run(config: &Config, app: &App, command: ImageCommand) -> anyhow::Result<ExitCode> {
    match command {
        ImageCommand::Ls => list(config, app).await,
        ImageCommand::Build { languages, force, verbose } => {
            let former = if force { Former::Ignored } else { Former::Used };
            fetch(config, app, languages, How { origin: Origin::Built, former, verbose }).await
        }
        ImageCommand::Pull { names, verbose } => pull(config, app, names, verbose).await,
        ImageCommand::Import { file, name } => import(app, &file, name.as_deref()).await,
        ImageCommand::Rm { names } => remove(app, names).await,
        ImageCommand::Prune => prune(app).await,
    }
}

/// Where an image comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Built,
    Pulled,
}

/// How images are built or pulled.
struct How {
    origin: Origin,
    former: Former,
    verbose: bool,
}

/// The command that gets the image of a language.
///
/// # Errors
///
/// The parts that are missing for that on this machine, and how to get them.
pub(super) async fn how_to_fetch(
    config: &Config,
    app: &App,
    language: &Language,
) -> Result<String, String> {
    let name = &language.sandbox.image.name;
    app.images.can_fetch(name).await.map_err(|error| error.to_string())?;
    let how = if app.images.is_built(name) { "build" } else { "pull" };
    Ok(format!("{} image {how} {}", isolator(config, app.kind), language.name))
}

async fn list(config: &Config, app: &App) -> anyhow::Result<ExitCode> {
    say(&format!("{:<14}{:<32}{:<10}DIGEST", "LANGUAGE", "IMAGE", "SIZE"))?;
    for language in config.languages.values() {
        let name = &language.sandbox.image.name;
        let (size, digest) = match app.images.find(name).await? {
            Some(image) => in_short(image.size, &image.digest),
            None => ("-".to_owned(), "missing".to_owned()),
        };
        row(&language.name, name, &size, &digest)?;
    }
    let others = bounded(Call::FindImage, app.store.list()).await?;
    for image in &others {
        let (size, digest) = in_short(image.size, &image.digest);
        if image.names.is_empty() {
            row("-", "(unused)", &size, &digest)?;
        }
        let is_language = |name: &String| {
            config.languages.values().any(|language| is_same(&language.sandbox.image.name, name))
        };
        for name in image.names.iter().filter(|name| !is_language(name)) {
            row("-", name, &size, &digest)?;
        }
    }
    tell_unused(config, app, &others);
    Ok(ExitCode::SUCCESS)
}

fn row(language: &str, image: &str, size: &str, digest: &str) -> anyhow::Result<()> {
    say(&format!("{language:<14}{image:<31} {size:<9} {digest}"))
}

/// Says what to do about images that have no name anymore, if there are any.
fn tell_unused(config: &Config, app: &App, listed: &[ListedImage]) {
    let sizes: Vec<_> =
        listed.iter().filter(|image| image.names.is_empty()).map(|image| image.size).collect();
    if !sizes.is_empty() {
        let (count, size) = (sizes.len(), ByteSize::mib(sizes.iter().sum::<u64>() >> 20));
        let isolator = isolator(config, app.kind);
        complain(&format!(
            "isolator: {count} unused image(s) of former builds take {size}; `{isolator} image prune` removes them"
        ));
    }
}

/// A size in MiB, and a digest shortened so that it still differs from others.
fn in_short(size: u64, digest: &str) -> (String, String) {
    (ByteSize::mib(size >> 20).to_string(), digest.chars().take(19).collect())
}

/// Whether a short and a full name mean the same image.
fn is_same(short: &str, full: &str) -> bool {
    let full = full.strip_prefix("docker.io/").unwrap_or(full);
    let full = full.strip_prefix("library/").unwrap_or(full);
    full == short || full.strip_suffix(":latest") == Some(short)
}

/// Pulls the images of languages, or, if no name is a language, images by their names.
async fn pull(
    config: &Config,
    app: &App,
    names: Vec<String>,
    verbose: bool,
) -> anyhow::Result<ExitCode> {
    if !names.is_empty() && !names.iter().any(|name| config.languages.contains_key(name)) {
        for name in names {
            let steps = Steps::of_image(&app.images, &name).verbose(verbose);
            let show = |line: &str| steps.show(line);
            let pulling = bounded(Call::FetchImage, app.engine.pull_image(&name, &show));
            steps.follow(pulling).await?;
            say_what_is_there(app, &name).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let how = How { origin: Origin::Pulled, former: Former::Used, verbose };
    fetch(config, app, names, how).await
}

async fn import(app: &App, file: &Path, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let file = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let steps = Steps::new(file.display().to_string(), "is imported");
    let show = |line: &str| steps.show(line);
    let importing = bounded(Call::FetchImage, app.store.import(file, name, &show));
    for name in steps.follow(importing).await? {
        say_what_is_there(app, &name).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the image that a name stands for now.
async fn say_what_is_there(app: &App, name: &str) -> anyhow::Result<()> {
    let found = app.images.find(name).await?;
    say(&format!("{name} {}", found.map_or(String::new(), |image| image.digest)))
}

async fn remove(app: &App, names: Vec<String>) -> anyhow::Result<ExitCode> {
    for name in names {
        bounded(Call::RemoveImage, app.store.remove(&name)).await?;
        say(&format!("removed {name}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn prune(app: &App) -> anyhow::Result<ExitCode> {
    let pruned = bounded(Call::RemoveImage, app.store.prune()).await?;
    let size = ByteSize::mib(pruned.bytes >> 20);
    say(&format!("removed {} image(s) that nothing needs, {size}", pruned.images))?;
    Ok(ExitCode::SUCCESS)
}

async fn fetch(
    config: &Config,
    app: &App,
    names: Vec<String>,
    how: How,
) -> anyhow::Result<ExitCode> {
    let mut is_any_new = false;
    let fetched = fetch_each(config, app, names, how, &mut is_any_new).await;
    if is_any_new || fetched.is_err() {
        // What builds have used is removed now, and not when the next server starts. A failure has its own error.
        if let Err(error) = app.give_up().await
            && fetched.is_ok()
        {
            tracing::warn!(%error, "what builds have left could not be removed");
        }
    }
    // Also when a later one failed, because those before it have replaced others.
    let listed = match is_any_new {
        true => bounded(Call::FindImage, app.store.list()).await,
        false => Ok(Vec::new()),
    };
    if let Ok(listed) = &listed {
        tell_unused(config, app, listed);
    }
    fetched?;
    listed?;
    Ok(ExitCode::SUCCESS)
}

/// Builds or pulls the images of the languages, and notes whether one of them is new.
async fn fetch_each(
    config: &Config,
    app: &App,
    names: Vec<String>,
    how: How,
    is_any_new: &mut bool,
) -> anyhow::Result<()> {
    for language in choose(config, app, names, how.origin)? {
        let name = &language.sandbox.image.name;
        let steps = Steps::of_image(&app.images, name).verbose(how.verbose);
        let show = |line: &str| steps.show(line);
        let fetched = steps.follow(app.images.fetch(name, how.former, &show)).await?;
        let Fetched { image, is_unchanged } = fetched;
        *is_any_new |= !is_unchanged;
        let note = if is_unchanged { " (unchanged; --force builds it again)" } else { "" };
        say(&format!("{name} {}{note}", image.digest))?;
    }
    Ok(())
}

/// The named languages, or all whose images have that origin.
fn choose(
    config: &Config,
    app: &App,
    names: Vec<String>,
    origin: Origin,
) -> anyhow::Result<Vec<Arc<Language>>> {
    let origin_of = |language: &Language| {
        if app.images.is_built(&language.sandbox.image.name) {
            Origin::Built
        } else {
            Origin::Pulled
        }
    };
    if names.is_empty() {
        let fits = |language: &&Arc<Language>| origin_of(language) == origin;
        return Ok(config.languages.values().filter(fits).cloned().collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let Some(language) = config.languages.get(&name) else {
            let known: Vec<_> = config.languages.keys().cloned().collect();
            bail!("{name:?} is not a configured language: use some of {}", known.join(", "));
        };
        match (origin_of(language), origin) {
            (Origin::Built, Origin::Pulled) => {
                let isolator = isolator(config, app.kind);
                bail!("the image of {name} is built, not pulled: {isolator} image build {name}")
            }
            (Origin::Pulled, Origin::Built) => {
                let isolator = isolator(config, app.kind);
                bail!("the image of {name} is pulled, not built: {isolator} image pull {name}")
            }
            _ => chosen.push(Arc::clone(language)),
        }
    }
    Ok(chosen)
}
