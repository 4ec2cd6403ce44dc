//! `isolator packages lock`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::app::{App, PoolFill};
use crate::commands::complain;
use crate::commands::packages::choice;
use crate::commands::packages::each::each_set;
use crate::commands::signals::stop_signal;
use crate::commands::steps::{Steps, ensure_image};
use crate::config::{Config, SetConfig};
use crate::packages::build::{Builder, Sandboxes};
use crate::packages::lock::{Lock, Locked};
use crate::packages::store::Store;

/// The result for a lock.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    folder: String,
    hash: String,
    target: String,
    /// Whether it is the same as before.
    is_unchanged: bool,
    packages: Vec<Locked>,
}

/// Resolves the sets, and writes their locks.
pub(super) async fn lock(
    config: Config,
    store: Store,
    names: &[String],
    upgrade: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    choice::of_configuration(&config, names)?;
    let config = Arc::new(config);
    let app = App::new(&config).await?;
    let stop = stop_signal()?;
    let pools = Arc::new(app.start_pools(&config, PoolFill::Nothing)?);
    let builder =
        Builder::new(Arc::clone(&config), store, Arc::clone(&pools) as Arc<dyn Sandboxes>);
    let ended = each_set(&config, names, stop, json, async |set| {
        let locked = lock_one(&app, &config, &builder, set, upgrade).await;
        let (row, changes) = locked.with_context(|| format!("the set {}", set.name))?;
        let text = describe(&row, &changes);
        Ok((row, text))
    })
    .await;
    drop(builder);
    ended.finish(&pools, json).await
}

/// Writes the lock of a set that has none, so that it is built from that. Returns its folder, or nothing if there is one.
pub(super) async fn lock_new(
    config: &Config,
    builder: &Builder,
    set: &SetConfig,
    steps: &Steps,
) -> anyhow::Result<Option<PathBuf>> {
    let recipe = choice::recipe(config, set)?;
    let folder = config.packages.lock_folder.join(&set.name);
    // One that can't be read is the concern of the build.
    if !matches!(Lock::read(recipe.interpreter, &folder), Ok(None)) {
        return Ok(None);
    }
    let Some(language) = config.languages.get(&set.language) else {
        bail!("{} is not a configured language", set.language);
    };
    let lock = builder.lock(language, &recipe, &|line| steps.show(line)).await?;
    lock.write(&folder)
        .with_context(|| format!("the lock of the set {} can't be written", set.name))?;
    Ok(Some(folder))
}

async fn lock_one(
    app: &App,
    config: &Config,
    builder: &Builder,
    set: &SetConfig,
    upgrade: bool,
) -> anyhow::Result<(Row, Vec<String>)> {
    let SetConfig { name, language, .. } = set;
    let recipe = choice::recipe(config, set)?;
    let Some(language) = config.languages.get(language) else {
        bail!("{language} is not a configured language");
    };
    ensure_image(&app.images, &language.sandbox.image.name, false).await?;
    let folder = config.packages.lock_folder.join(name);
    // One that can't be read is written anew.
    let before = Lock::read(recipe.interpreter, &folder);
    if let Err(error) = &before {
        complain(&format!("isolator: {error}; it is replaced"));
    }
    let before = before.ok().flatten();
    let target = builder.target(language).await?.name;
    let fits = |lock: &&Lock| !upgrade && lock.fits(&recipe) && lock.target == target;
    let lock = match before.as_ref().filter(fits) {
        Some(lock) => lock.clone(),
        None => {
            let steps = Steps::new(format!("the lock of the set of packages {name}"), "is made");
            // Only what has to change does.
            let former = before.as_ref().filter(|_| !upgrade);
            let show = |line: &str| steps.show(line);
            steps.follow(builder.lock_from(language, &recipe, former, &show)).await?
        }
    };
    let is_unchanged = before.as_ref() == Some(&lock);
    if !is_unchanged {
        lock.write(&folder).with_context(|| folder.display().to_string())?;
    }
    let changes = changes(before.as_ref().map_or(&[], |lock| &lock.packages), &lock.packages);
    let row = Row {
        name: name.clone(),
        folder: folder.display().to_string(),
        hash: lock.hash,
        target: lock.target,
        is_unchanged,
        packages: lock.packages,
    };
    Ok((row, changes))
}

/// The differences, a line for each package.
fn changes(before: &[Locked], after: &[Locked]) -> Vec<String> {
    // A set for Node.js can have several versions of a package.
    fn versions(packages: &[Locked]) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for Locked { name, version, .. } in packages {
            versions.entry(name).or_default().insert(version);
        }
        versions
    }
    let describe =
        |versions: &BTreeSet<&str>| versions.iter().copied().collect::<Vec<_>>().join(" and ");
    let (before, after) = (versions(before), versions(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change = |name: &&str| match (before.get(name), after.get(name)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(old), Some(new)) => {
            Some(format!("  {name} {} instead of {}", describe(new), describe(old)))
        }
        (Some(old), None) => Some(format!("  {name} {} is not needed anymore", describe(old))),
        (None, Some(new)) => Some(format!("  {name} {}", describe(new))),
        (None, None) => None,
    };
    names.into_iter().filter_map(change).collect()
}

fn describe(row: &Row, changes: &[String]) -> String {
    let Row { name, folder, packages, is_unchanged, .. } = row;
    if *is_unchanged {
        return format!("{name}: {folder} is unchanged, {} package(s)", packages.len());
    }
    let mut lines = vec![format!("{name}: wrote {folder}, {} package(s)", packages.len())];
    lines.extend_from_slice(changes);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_is_told_for_each_package() {
        let locked = |(name, version): (&str, &str)| Locked {
            name: name.to_owned(),
            version: version.to_owned(),
            wanted_by: Vec::new(),
        };
        let before = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")].map(locked);
        let after = [("a", "1"), ("b", "2"), ("d", "1"), ("d", "2"), ("e", "3")].map(locked);
        assert_eq!(
            changes(&before, &after),
            [
                "  b 2 instead of 1",
                "  c 1 is not needed anymore",
                "  d 1 and 2 instead of 1",
                "  e 3"
            ]
        );
    }
}
