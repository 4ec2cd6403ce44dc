//! `isolator image`: manages the images of the configured languages.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::{Call, bounded};

use crate::app::App;
use crate::commands::cli::ImageCommand;
use crate::commands::{Work, complain, isolator, say};
use crate::config::{Config, Language};

/// Runs the command.
pub fn image(config: Config, command: ImageCommand) -> Work {
    Box::pin(async move {
        let app = App::new(&config).await?;
        match command {
            ImageCommand::Ls => list(&config, &app).await,
            ImageCommand::Build { languages } => {
                fetch(&config, &app, languages, Origin::Built).await
            }
            ImageCommand::Pull { names } => pull(&config, &app, names).await,
            ImageCommand::Import { file, name } => import(&app, &file, name.as_deref()).await,
            ImageCommand::Rm { names } => remove(&app, names).await,
            ImageCommand::Prune => prune(&app).await,
        }
    })
}

/// Where an image comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Built,
    Pulled,
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
    for image in others {
        let (size, digest) = in_short(image.size, &image.digest);
        let is_language = |name: &String| {
            config.languages.values().any(|language| is_same(&language.sandbox.image.name, name))
        };
        let nameless = image.names.is_empty().then(|| "-".to_owned());
        for name in image.names.iter().filter(|name| !is_language(name)).chain(&nameless) {
            row("-", name, &size, &digest)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(language: &str, image: &str, size: &str, digest: &str) -> anyhow::Result<()> {
    say(&format!("{language:<14}{image:<31} {size:<9} {digest}"))
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
async fn pull(config: &Config, app: &App, names: Vec<String>) -> anyhow::Result<ExitCode> {
    if !names.is_empty() && !names.iter().any(|name| config.languages.contains_key(name)) {
        for name in names {
            let pulling = app.engine.pull_image(&name, &|line| complain(line));
            bounded(Call::FetchImage, pulling).await?;
            say_what_is_there(app, &name).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    fetch(config, app, names, Origin::Pulled).await
}

async fn import(app: &App, file: &Path, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let file = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let importing = app.store.import(file, name, &|line| complain(line));
    for name in bounded(Call::FetchImage, importing).await? {
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
    origin: Origin,
) -> anyhow::Result<ExitCode> {
    for language in choose(config, app, names, origin)? {
        let name = &language.sandbox.image.name;
        let image = app.images.fetch(name, &|line| complain(line)).await?;
        say(&format!("{name} {}", image.digest))?;
    }
    Ok(ExitCode::SUCCESS)
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
