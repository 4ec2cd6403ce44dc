//! Mount points in the root of an image: those of every sandbox, the image's volumes, the workspace.
//!
//! Each of them, and every directory above it, must be real: a sandbox's mounts are placed through no link. Links elsewhere, such
//! as `/lib`, `/var/run` or `/etc/mtab`, do no harm.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, renameat, unlinkat};
use rustix::io::Errno;

use super::description::Description;
use super::error::{IoContext, StoreError};
use super::tree::{self, IfMissing, Root};

/// Directories on which something is mounted in every sandbox.
pub(crate) const DIRECTORIES: [&str; 4] = ["/proc", "/dev", "/sys", "/tmp"];

/// Files that every sandbox has of its own.
pub(crate) const HOSTS: &str = "/etc/hosts";
pub(crate) const HOSTNAME: &str = "/etc/hostname";
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
const FILES: [&str; 3] = [HOSTS, HOSTNAME, RESOLV_CONF];

/// The mount points that exist already.
#[derive(Debug, Default)]
pub(super) struct Mountpoints {
    directories: HashSet<PathBuf>,
    files: HashSet<PathBuf>,
}

impl Mountpoints {
    /// Makes missing directories and empty files in the root of an image. Mount points are remembered, so that
    /// the next call costs nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] if something else is there already, or a link is on the way.
    pub(super) fn make(
        &mut self,
        root: &Path,
        image: &str,
        directories: &[PathBuf],
        files: &[PathBuf],
    ) -> Result<(), StoreError> {
        let known = directories.iter().all(|path| self.directories.contains(path));
        if known && files.iter().all(|path| self.files.contains(path)) {
            return Ok(());
        }
        let root = Root::open(root).at("open", root)?;
        let mut maker = Maker { root: &root, image, made: Vec::new() };
        directories.iter().try_for_each(|path| maker.directory(path, path).map(drop))?;
        files.iter().try_for_each(|path| maker.file(path))?;
        self.directories.extend(directories.iter().cloned());
        self.files.extend(files.iter().cloned());
        Ok(())
    }
}

/// Makes all mount points of a new image that are known already, so that an image without room for them is refused at once.
/// Returns the description, in which the volumes have paths without links, and the inodes of the directories that were made.
pub(super) fn prepare(
    root: &Root,
    image: &str,
    description: Description,
) -> Result<(Description, Vec<u64>), StoreError> {
    let mut maker = Maker { root, image, made: Vec::new() };
    let volumes = description.volumes.iter().map(|volume| maker.volume(volume));
    let volumes = volumes.collect::<Result<_, _>>()?;
    let description = Description { volumes, ..description }.check(image)?;
    let volumes = description.volumes.iter().map(String::as_str);
    for directory in DIRECTORIES.into_iter().chain(volumes) {
        maker.directory(Path::new(directory), Path::new(directory))?;
    }
    FILES.into_iter().try_for_each(|file| maker.file(Path::new(file)))?;
    Ok((description, maker.made))
}

/// Makes mount points in one root.
struct Maker<'a> {
    root: &'a Root,
    /// The image, for messages.
    image: &'a str,
    /// Inodes of the directories that were made.
    made: Vec<u64>,
}

impl Maker<'_> {
    /// Makes a directory for a volume and returns its path without links. Images declare volumes such as
    /// `/var/run/x`, where `/var/run` is a link: there the mount point is the target, as in other engines.
    fn volume(&mut self, volume: &str) -> Result<String, StoreError> {
        let place = self.root.directory(Path::new(volume), IfMissing::Make);
        let place =
            place.context(|| format!("can't make the volume {volume} of image {}", self.image))?;
        self.made.extend(place.made);
        let path = Path::new("/").join(place.path).into_os_string().into_string();
        path.map_err(|path| {
            let message = format!("its volume {volume} leads to {path:?}, which is not text");
            StoreError::unusable(self.image, message)
        })
    }

    /// Opens a directory for a mount point, which is the directory itself or below it, and makes what is missing
    /// of it.
    fn directory(&mut self, path: &Path, mountpoint: &Path) -> Result<OwnedFd, StoreError> {
        let image = self.image;
        let what = || what(image, mountpoint);
        let mut fd = self.root.fd().try_clone().context(what)?;
        let mut reached = PathBuf::from("/");
        for component in path.components() {
            let name = match component {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                _ => return Err(self.not_normalized(mountpoint)),
            };
            reached.push(name);
            let found = tree::stat(&fd, name).context(what)?;
            fd = match found.map(|found| tree::kind(&found)) {
                None => {
                    let (fd, inode) = tree::make_directory(&fd, name).context(what)?;
                    self.made.extend(inode);
                    fd
                }
                Some(FileType::Directory) => tree::enter(&fd, name).context(what)?,
                Some(kind) => return Err(self.refused(&reached, kind, "a directory", mountpoint)),
            };
        }
        Ok(fd)
    }

    /// Makes an empty file.
    fn file(&mut self, path: &Path) -> Result<(), StoreError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(self.not_normalized(path));
        };
        let directory = self.directory(parent, path)?;
        let what = || what(self.image, path);
        let found = tree::stat(&directory, name).context(what)?;
        let made = match found.map(|found| tree::kind(&found)) {
            None => make_file(&directory, name),
            Some(FileType::RegularFile) => Ok(()),
            // A root file system that was a machine's has such links, most often for `/etc/resolv.conf`. No
            // sandbox ever sees them, because its own file is mounted there.
            Some(FileType::Symlink) => replace(&directory, name),
            Some(kind) => return Err(self.refused(path, kind, "a file", path)),
        };
        made.context(what)
    }

    fn not_normalized(&self, path: &Path) -> StoreError {
        let path = path.display();
        let message = format!("the path of its mount point {path} is not normalized");
        StoreError::unusable(self.image, message)
    }

    fn refused(&self, at: &Path, kind: FileType, wanted: &str, mountpoint: &Path) -> StoreError {
        let kind = match kind {
            FileType::Symlink => "a symbolic link",
            FileType::Directory => "a directory",
            FileType::RegularFile => "a file",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            _ => "a device",
        };
        let (at, mountpoint) = (at.display(), mountpoint.display());
        let message = format!(
            "{at} is {kind} but must be {wanted}, because something is mounted at {mountpoint} in each \
             sandbox: build the image with {wanted} there"
        );
        StoreError::unusable(self.image, message)
    }
}

/// The failed operation, for errors of the file system.
fn what(image: &str, mountpoint: &Path) -> String {
    format!("can't make the mount point {} in image {image}", mountpoint.display())
}

fn make_file(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    match tree::open(directory, name, flags) {
        Ok(file) => Ok(fchmod(&file, Mode::from_raw_mode(0o644))?),
        // Another process has made it just now.
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Puts an empty file in the place of a link, in one step: other processes may need the file at any moment.
fn replace(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let new = OsString::from(format!(".{}", uuid::Uuid::new_v4()));
    make_file(directory, &new)?;
    let renamed = renameat(directory, &new, directory, name);
    if renamed.is_err() {
        // The error that matters is the first one.
        let _ = unlinkat(directory, &new, AtFlags::empty());
    }
    Ok(renamed?)
}
