//! The overlay mounts of a sandbox: its image with the shared files over it, and its devices.
//!
//! Each sandbox has its own overlays. Nothing is copied, and the page cache is shared, but to the kernel the
//! files are different ones. If sandboxes shared a file, a program could watch (inotify) what other sandboxes
//! and the host open, or make them wait with a lock (flock).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::engine::embedded::layout::{self, SHARED};
use crate::engine::embedded::protocol::WritableLayer;

/// The launcher's device nodes. `libcontainer` uses them for sandboxes.
const DEVICES: &str = "/dev";

/// The mounts of a sandbox that is being made. The sandbox's own namespace keeps them; dropping this unmounts
/// them in the launcher's.
pub(super) struct SandboxMounts {
    /// Mount points, the innermost first.
    points: Vec<PathBuf>,
    folder: PathBuf,
}

impl SandboxMounts {
    /// Mounts an image for a sandbox, with a writable layer if it has one.
    ///
    /// # Errors
    /// The kernel's, with the options of the mount.
    pub(super) fn new(name: &str, image: &Path, layer: Option<WritableLayer>) -> io::Result<Self> {
        let root = layout::root_of(name);
        let folder = root.parent().unwrap_or(&root).to_owned();
        fs::create_dir(&folder)?;
        let mut mounted = Self { points: Vec::new(), folder };
        let folder = &mounted.folder;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let lower = format!("lowerdir={SHARED}:{}", image.display());
        let Some(WritableLayer { size, inodes }) = layer else {
            fs::create_dir(&root)?;
            overlay(&root, flags | MountFlags::RDONLY, &lower)?;
            mounted.points.push(root);
            return Ok(mounted);
        };
        let options = CString::new(format!("mode=755,size={size},nr_inodes={inodes}"))?;
        mount("tmpfs", folder, "tmpfs", flags, &*options)?;
        mounted.points.push(folder.clone());
        let [upper, work] = ["upper", "work"].map(|name| mounted.folder.join(name));
        for directory in [&upper, &work, &root] {
            fs::create_dir(directory)?;
        }
        let options = format!("{lower},upperdir={},workdir={}", upper.display(), work.display());
        overlay(&root, flags, &options)?;
        mounted.points.insert(0, root);
        Ok(mounted)
    }

    /// Removes every user's right to read a program: the first of these paths that exists. It can still be started. The root
    /// must be writable: it gets a copy. With large pages, forks of the program map and unmap it in fewer steps.
    pub(super) fn hide_program(&self, paths: &[PathBuf]) -> io::Result<()> {
        // Some kernels have no large pages.
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let _ = mount_remount(&self.folder, flags, c"huge=within_size");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&self.points[0], flags, Mode::empty())?;
        for path in paths {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            match openat2(&root, path, flags, Mode::empty(), resolve) {
                Err(Errno::NOENT) => {}
                program => {
                    let program = program?;
                    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
                    return fs::set_permissions(path, fs::Permissions::from_mode(0o111));
                }
            }
        }
        Ok(())
    }

    /// Mounts devices for the next sandbox over those of the launcher. The launcher must be root: the kernel does
    /// not open devices on a mount of another user.
    pub(super) fn with_devices(mut self) -> io::Result<Self> {
        // An overlay needs at least two layers; any folder without devices will do.
        let options = format!("lowerdir={DEVICES}:{}", self.folder.display());
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
        overlay(Path::new(DEVICES), flags, &options)?;
        self.points.push(PathBuf::from(DEVICES));
        Ok(self)
    }
}

fn overlay(target: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
    mount("overlay", target, "overlay", flags, &*CString::new(options)?).map_err(|error| {
        io::Error::other(format!("an overlay can't be mounted ({options}): {error}"))
    })
}

impl Drop for SandboxMounts {
    fn drop(&mut self) {
        for point in &self.points {
            // A mount that stays is removed with this process.
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        super::remove_folder(&self.folder);
    }
}
