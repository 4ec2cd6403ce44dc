//! Mounts by descriptors: a file system is mounted nowhere first, and then placed at a descriptor. No path is looked up for it.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use syscalls::{Sysno, syscall};

/// The attributes of nearly all mounts.
pub(super) const HARMLESS: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Those of mounts with nothing to start.
pub(super) const NO_PROGRAMS: MountAttrFlags = HARMLESS.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Those of mounts with devices.
pub(super) const DEVICES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Those of mounts that can only be read, with nothing to start.
pub(super) const READ_ONLY: MountAttrFlags = NO_PROGRAMS.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// `MOUNT_ATTR_IDMAP` of `linux/mount.h`.
pub(super) const MAPPED: MountAttrFlags = MountAttrFlags::from_bits_retain(0x0010_0000);

/// Mounts a new file system, nowhere yet.
pub(super) fn new<'o>(
    kind: &CStr,
    options: impl IntoIterator<Item = (&'o CStr, &'o CStr)>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, c"source", kind)?;
    for (name, value) in options {
        fsconfig_set_string(&context, name, value)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Mounts a folder or file of a mount once more, nowhere yet.
pub(super) fn again(at: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(at, path, flags)
}

/// Moves a mount to what a descriptor stands for.
pub(super) fn place(mount: impl AsFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", target, c"", flags)
}

/// Adds attributes to a mount. `users` is the namespace for [`MAPPED`].
#[allow(unsafe_code)]
pub(super) fn restrict(
    mount: impl AsFd,
    attributes: MountAttrFlags,
    users: Option<&OwnedFd>,
) -> Result<(), Errno> {
    /// `struct mount_attr`.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        users: u64,
    }
    const AT_EMPTY_PATH: usize = 0x1000;
    let (set, users) =
        (attributes.bits().into(), users.map_or(0, |users| users.as_raw_fd() as u64));
    let attributes = Attributes { set, clear: 0, propagation: 0, users };
    // SAFETY: the kernel reads the path and the attributes, which live as long as the call.
    let done = unsafe {
        syscall!(
            Sysno::mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>()
        )
    };
    done.map(|_| ()).map_err(|error| Errno::from_raw_os_error(error.into_raw()))
}
