//! The directory of the configuration of Docker's command line.

use std::env;
use std::path::PathBuf;

/// The directory, if this process has one.
pub(super) fn directory() -> Option<PathBuf> {
    let own = env::var_os("DOCKER_CONFIG").filter(|path| !path.is_empty());
    own.map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".docker")))
}
