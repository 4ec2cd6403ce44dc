//! A mount of a directory in which the users of a namespace own the files.
//!
//! The script of a build is root in a user namespace, and no user of it is one of the host's. The files on the
//! disk belong to 0, 1000 and so on, because sandboxes are made of them. The kernel translates between the two
//! at the mount, so no file has to be given to another owner.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use libcontainer::syscall::linux::{AT_EMPTY_PATH, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MountAttr};
use libcontainer::syscall::syscall::create_syscall;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::user_namespace;
use crate::engine::embedded::host::Ids;

/// From `linux/mount.h`.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// The user who owns the namespace: the one that makes the mount.
const ROOT: u32 = 0;

/// Mounts a directory at another path, with its files owned by the users that `ids` are in a namespace.
pub(super) fn mount_mapped(directory: &OwnedFd, target: &str, ids: Ids) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(directory, "", flags)?;
    let users = user_namespace::make(ROOT, ids)
        .map_err(|error| io::Error::other(format!("no user namespace can be made: {error}")))?;
    let attributes = MountAttr {
        attr_set: MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: users.as_raw_fd() as u64,
    };
    let size = size_of::<MountAttr>();
    create_syscall()
        .mount_setattr(tree.as_fd(), Path::new(""), AT_EMPTY_PATH, &attributes, size)
        .map_err(|error| {
            io::Error::other(format!(
                "users can't be mapped on the file system of the image store ({error}): keep the store on \
                 ext4, XFS or Btrfs, and use Linux 5.15 or newer"
            ))
        })?;
    Ok(move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
