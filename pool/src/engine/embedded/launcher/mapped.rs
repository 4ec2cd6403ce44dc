//! A mount of a directory in which the users of a namespace own the files.
//!
//! The script of a build is root in a user namespace, and no user of it is one of the host's. The files on the
//! disk belong to 0, 1000 and so on, because sandboxes are made of them. The kernel translates between the two
//! at the mount, so no file has to be given to another owner.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, move_mount};

use super::mounting::{self, HARMLESS, MAPPED};
use super::user_namespace;
use crate::engine::embedded::host::Ids;

/// Mounts a directory at another path, with its files owned by the users that `ids` are in a namespace.
pub(super) fn mount_mapped(
    directory: &OwnedFd,
    target: &str,
    ids: Ids,
    mapper: &OwnedFd,
) -> io::Result<()> {
    let tree = mounting::again(directory, c"")?;
    let users = user_namespace::make(mapper, ids)
        .map_err(|error| io::Error::other(format!("no user namespace can be made: {error}")))?;
    mounting::restrict(&tree, HARMLESS | MAPPED, Some(&users.into())).map_err(|error| {
        io::Error::other(format!(
            "users can't be mapped on the file system of the image store ({error}): keep the store on \
             ext4, XFS or Btrfs, and use Linux 5.15 or newer"
        ))
    })?;
    Ok(move_mount(&tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
