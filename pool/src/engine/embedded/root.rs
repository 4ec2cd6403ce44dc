//! What a sandbox sees of files that all of them have: the image and what lies over it, and devices.
//!
//! Each sandbox has overlays of its own on them. Nothing is copied, and memory for what is read is shared;
//! but the files are the sandbox's own to the kernel. On one and the same file a watch (inotify) would tell
//! a program what its neighbours and the host open, and a lock (flock) would keep them waiting.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::layout::{ROOTS, SHARED};
use super::protocol::Layer;

/// Device nodes as the launcher sees them, which is where `libcontainer` takes them from.
const DEVICES: &str = "/dev";

/// Where the root of a sandbox is while it is made, in the launcher's view.
pub(super) fn place(name: &str) -> PathBuf {
    Path::new(ROOTS).join(name).join("root")
}

/// The files of a sandbox that is being made. They are mounted in its own namespace as soon as it is there;
/// dropping this unmounts them in the launcher's.
pub(super) struct Mounted {
    /// Mount points, the innermost first.
    points: Vec<PathBuf>,
    folder: PathBuf,
}

impl Mounted {
    /// Mounts an image for a sandbox, with a layer to write on if it has one.
    ///
    /// # Errors
    ///
    /// Of the kernel, with what was to be mounted.
    pub(super) fn new(name: &str, image: &Path, layer: Option<Layer>) -> io::Result<Self> {
        let root = place(name);
        let folder = root.parent().unwrap_or(&root).to_owned();
        fs::create_dir(&folder)?;
        let mut mounted = Self { points: Vec::new(), folder };
        let folder = &mounted.folder;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let lower = format!("lowerdir={SHARED}:{}", image.display());
        let Some(Layer { size, inodes }) = layer else {
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

    /// Mounts devices for the sandbox that is made next, over those of the launcher, which must be root: the
    /// kernel opens no device on what another user has mounted.
    pub(super) fn with_devices(mut self) -> io::Result<Self> {
        // An overlay has two layers at least. Any folder without devices will do.
        let options = format!("lowerdir={DEVICES}:{}", self.folder.display());
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
        overlay(Path::new(DEVICES), flags, &options)?;
        self.points.push(PathBuf::from(DEVICES));
        Ok(self)
    }
}

fn overlay(place: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
    mount("overlay", place, "overlay", flags, &*CString::new(options)?).map_err(|error| {
        io::Error::other(format!("an overlay can't be mounted ({options}): {error}"))
    })
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for point in &self.points {
            // What stays goes with this process.
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
