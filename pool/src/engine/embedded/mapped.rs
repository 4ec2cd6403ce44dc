//! A mount of a directory in which the users of a namespace own the files.
//!
//! The script of a build is root in a user namespace, and no user of it is one of the host's. The files on the
//! disk belong to 0, 1000 and so on, because sandboxes are made of them. The kernel translates between the two
//! at the mount, so no file has to be given to another owner.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use libcontainer::syscall::linux::{AT_EMPTY_PATH, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MountAttr};
use libcontainer::syscall::syscall::create_syscall;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::host::Ids;
use super::launch::SUBCOMMAND;

/// The argument of a process that holds a user namespace.
pub(super) const HOLD: &str = "hold";

/// From `linux/mount.h`.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// What the holding process says when it has entered its namespace.
const ENTERED: u8 = b'1';

/// Mounts a directory at another path, with its files owned by the users that `ids` are in a namespace.
pub(super) fn mount_mapped(directory: &OwnedFd, target: &str, ids: Ids) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(directory, "", flags)?;
    let users = user_namespace(ids)?;
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

/// A user namespace with these users. A process is needed only to make it.
fn user_namespace(ids: Ids) -> io::Result<File> {
    let mut holder = Command::new("/proc/self/exe")
        .args([SUBCOMMAND, HOLD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let folder = Path::new("/proc").join(holder.id().to_string());
    let mut map = || -> io::Result<File> {
        let mut entered = [0];
        holder.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?.read_exact(&mut entered)?;
        for map in ["uid_map", "gid_map"] {
            fs::write(folder.join(map), format!("0 {} {}", ids.first, ids.count))?;
        }
        File::open(folder.join("ns/user"))
    };
    let namespace = map();
    // It ends when its standard input does.
    drop(holder.stdin.take());
    holder.wait()?;
    namespace.map_err(|error| io::Error::other(format!("no user namespace can be made: {error}")))
}

/// The part of the holding process, which has entered a new user namespace: it says so, and stays until nobody
/// needs it.
pub(super) fn hold() -> io::Result<()> {
    io::stdout().write_all(&[ENTERED])?;
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
