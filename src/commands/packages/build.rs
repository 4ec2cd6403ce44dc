//! `isolator packages build`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use isolator_pool::quote::first_of;

use crate::app::{App, PoolFill};
use crate::commands::complain;
use crate::commands::packages::each::each_set;
use crate::commands::packages::list::Row;
use crate::commands::packages::lock::lock_new;
use crate::commands::packages::{choice, size};
use crate::commands::signals::stop_signal;
use crate::commands::steps::{Steps, ensure_image};
use crate::config::{Config, SetConfig};
use crate::packages::Packages;
use crate::packages::build::{Builder, Sandboxes};
use crate::packages::lock::Locked;
use crate::packages::store::{Store, StoredSet, short};

/// Packages whose versions are printed.
const MOST_SHOWN: usize = 6;

/// Builds the sets, one after the other. A set that can't be built does not keep the others from it.
pub(super) async fn build(
    config: Config,
    store: Store,
    names: &[String],
    json: bool,
) -> anyhow::Result<ExitCode> {
    choice::of_configuration(&config, names)?;
    let config = Arc::new(config);
    let app = App::new(&config).await?;
    let stop = stop_signal()?;
    let pools = Arc::new(app.start_pools(&config, PoolFill::Nothing)?);
    let packages = Packages::new(Arc::clone(&config), Arc::clone(&pools), store.clone(), true);
    let sandboxes = Arc::clone(&pools) as Arc<dyn Sandboxes>;
    let builder = Builder::new(Arc::clone(&config), store.clone(), sandboxes);
    let ended = each_set(&config, names, stop, json, async |set| {
        let built = build_one(&app, &config, &builder, &packages, set).await?;
        let text = describe(set, &built);
        let row = Row::of(&config, &store, Some(set.name.clone()), built, SystemTime::now());
        Ok((row, text))
    })
    .await;
    // Whatever has ended it, no tool goes on.
    packages.close().await;
    ended.finish(&pools, json).await
}

async fn build_one(
    app: &App,
    config: &Config,
    builder: &Builder,
    packages: &Packages,
    set: &SetConfig,
) -> anyhow::Result<StoredSet> {
    let SetConfig { name, language, .. } = set;
    if let Some(language) = config.languages.get(language) {
        ensure_image(&app.images, &language.sandbox.image.name, false).await?;
    }
    let steps = Steps::new(format!("the set of packages {name}"), "is built, which is done once");
    // The next build, on this machine or another, gets the same versions.
    let locked = steps.follow(lock_new(config, builder, set, &steps)).await;
    let locked = locked.with_context(|| format!("the set of packages {name} was not locked"))?;
    if let Some(folder) = locked {
        complain(&format!(
            "isolator: wrote {}, from which {name} is built from now on; keep it with the configuration",
            folder.display()
        ));
    }
    Ok(steps.follow(packages.build(name, &|line| steps.show(line))).await?)
}

fn describe(set: &SetConfig, built: &StoredSet) -> String {
    let package = |locked: &Locked| format!("{} {}", locked.name, locked.version);
    let packages = first_of(built.packages.iter().map(package), MOST_SHOWN);
    let (name, hash, size) = (&set.name, short(&built.hash), size(built.bytes));
    format!("{name} {hash}, {size}: {packages}")
}
