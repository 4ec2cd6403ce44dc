//! The description of a file, a folder or a link.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use isolator_runner::wire::agent::{Entry, EntryKind, LeadsTo};

use super::users::Users;
use crate::changes::text;

/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Describes the file, folder or link with this path. Links are not followed.
pub(super) fn entry(path: &Path, users: &mut Users) -> io::Result<Entry> {
    let metadata = fs::symlink_metadata(path)?;
    let file_type = metadata.file_type();
    let kind = if file_type.is_file() {
        EntryKind::File
    } else if file_type.is_dir() {
        EntryKind::Folder
    } else if file_type.is_symlink() {
        let leads_to = fs::metadata(path).ok().map(|end| match end.file_type() {
            end if end.is_file() => LeadsTo::File,
            end if end.is_dir() => LeadsTo::Folder,
            _ => LeadsTo::Other,
        });
        EntryKind::Link { target: text(&fs::read_link(path)?), leads_to }
    } else {
        debug_assert!(
            file_type.is_fifo()
                || file_type.is_socket()
                || file_type.is_block_device()
                || file_type.is_char_device()
        );
        EntryKind::Other
    };
    let name = path.file_name().map_or(path, Path::new);
    Ok(Entry {
        name: text(name),
        path: text(path),
        kind,
        size: metadata.len(),
        mode: metadata.mode() & PERMISSIONS,
        owner: users.user(metadata.uid()),
        group: users.group(metadata.gid()),
        modified: (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0)),
    })
}
