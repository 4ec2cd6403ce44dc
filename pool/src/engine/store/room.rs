//! Messages about a disk without room for an image.

use std::path::Path;

use rustix::fs::statvfs;

use crate::engine::limits::ByteSize;

/// Free space for this user on the disk of a directory, which need not exist yet.
pub fn free(directory: &Path) -> Option<ByteSize> {
    let disk = directory.ancestors().find_map(|existing| statvfs(existing).ok())?;
    Some(ByteSize::bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// The directory that needs room, and how much.
pub fn make_room(directory: &Path, needed: &str) -> String {
    let free = free(directory)
        .map_or("an unknown amount".to_owned(), |free| ByteSize::mib(free.as_mib()).to_string());
    let directory = directory.display();
    format!("make room in {directory}, whose disk has {free} free: {needed}")
}

/// An amount in a number that is easy to read.
pub(super) fn in_mib(needed: ByteSize) -> String {
    ByteSize::mib(needed.as_bytes().div_ceil(1 << 20)).to_string()
}
