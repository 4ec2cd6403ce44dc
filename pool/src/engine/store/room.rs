//! What is said of a disk that has no room for an image.

use std::path::Path;

use rustix::fs::statvfs;

use crate::engine::limits::ByteSize;

/// What is free for this user on the disk of a directory, which need not be there yet.
pub fn free(directory: &Path) -> Option<ByteSize> {
    let disk = directory.ancestors().find_map(|existing| statvfs(existing).ok())?;
    Some(ByteSize::bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Where room has to be made, and how much.
pub fn make_room(directory: &Path, needed: &str) -> String {
    let free = free(directory)
        .map_or("an unknown amount".to_owned(), |free| ByteSize::mib(free.as_mib()).to_string());
    let directory = directory.display();
    format!("make room in {directory}, whose disk has {free} free: {needed}")
}

/// How much is needed, in a number that is easy to read.
pub(super) fn in_mib(needed: ByteSize) -> String {
    ByteSize::mib(needed.as_bytes().div_ceil(1 << 20)).to_string()
}
