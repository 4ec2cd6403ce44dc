//! Paths of clients, and the opening of files. Programs may have put anything under a path.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use isolator_runner::wire::agent::Failure;

use super::failure;
use crate::changes::path_of;

/// The path that a client means.
pub(super) fn resolve(home: &Path, path: &str) -> PathBuf {
    // Parts that mean nothing are left out.
    home.join(path_of(path)).components().collect()
}

/// Opens a file for reading, if it is a regular one. Never waits: neither for the other end of a pipe nor for the holder of a lease.
pub(super) fn open(path: &Path) -> Result<File, Failure> {
    regular(&fs::metadata(path).map_err(|error| failure(&error))?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| failure(&error))?;
    // Another one can have taken its place.
    regular(&file.metadata().map_err(|error| failure(&error))?)?;
    Ok(file)
}

/// Checks that it is a regular file.
pub(super) fn regular(metadata: &fs::Metadata) -> Result<(), Failure> {
    if metadata.is_dir() {
        Err(Failure::System(libc::EISDIR))
    } else if metadata.is_file() {
        Ok(())
    } else {
        Err(Failure::NotFile)
    }
}
