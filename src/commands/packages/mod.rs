//! `isolator packages`: builds, lists, locks and removes sets of packages.

mod build;
mod choice;
mod each;
mod list;
mod lock;
mod remove;
mod users;
mod why;

use isolator_pool::engine::limits::ByteSize;

use crate::app;
use crate::commands::Work;
use crate::commands::cli::PackagesCommand;
use crate::config::Config;

/// Runs the command.
pub fn packages(config: Config, command: PackagesCommand) -> Work {
    Box::pin(async move {
        let store = app::package_store()?;
        match command {
            PackagesCommand::Build { sets, json } => build::build(config, store, &sets, json).await,
            PackagesCommand::Ls { json } => list::list(&config, &store, json),
            PackagesCommand::Rm { sets } => remove::remove(&config, &store, &sets),
            PackagesCommand::Prune => remove::prune(&config, &store),
            PackagesCommand::Lock { sets, upgrade, json } => {
                lock::lock(config, store, &sets, upgrade, json).await
            }
            PackagesCommand::Why { set, package, json } => {
                why::why(&config, &store, &set, &package, json)
            }
        }
    })
}

/// A size in MiB, rounded up.
fn size(bytes: u64) -> String {
    ByteSize::mib(bytes.div_ceil(1 << 20)).to_string()
}
