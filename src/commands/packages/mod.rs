//! `isolator packages`: builds, lists, locks and removes sets of packages.

mod build;
mod choice;
mod each;
mod list;
mod lock;
mod remove;
mod users;
mod why;

use clap::Subcommand;
use isolator_pool::engine::limits::ByteSize;

use crate::app;
use crate::commands::Work;
use crate::config::Config;

/// The commands for sets of packages.
#[derive(Debug, Subcommand)]
pub enum PackagesCommand {
    /// Build the sets of the configuration that are not there. A set without a lock gets one. The exit code is 1 if some
    /// could not be built
    Build {
        /// The sets; if none is given, all of the configuration
        #[arg(value_name = "SET")]
        sets: Vec<String>,
        /// Print the sets as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the sets of the configuration and all others that are there, with the servers that use them
    Ls {
        /// Print the sets as JSON, with their packages and modules
        #[arg(long)]
        json: bool,
    },
    /// Remove sets that are not used
    Rm {
        /// Names of sets, or hashes or their beginnings
        #[arg(required = true, value_name = "SET|HASH")]
        sets: Vec<String>,
    },
    /// Remove the sets that the configuration does not name and that are not used, and the caches of the tools
    Prune,
    /// Resolve sets, and write the versions and hashes into the folder isolator.lock next to the configuration, from
    /// which they are built from then on. A lock that still fits is left as it is
    Lock {
        /// The sets; if none is given, all of the configuration
        #[arg(value_name = "SET")]
        sets: Vec<String>,
        /// Take the newest versions, even where a lock still fits
        #[arg(long)]
        upgrade: bool,
        /// Print what is locked as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say why a package is in a set
    Why {
        /// The set
        set: String,
        /// The package
        package: String,
        /// Print the reasons as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn packages(config: Config, command: PackagesCommand) -> Work {
    Box::pin(async move {
        let store = app::package_store(&config.packages.store)?;
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
