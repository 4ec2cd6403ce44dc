//! Trees of folders of any depth: their contents are listed and removed.
//!
//! Packages, layers and builds can nest folders as deeply as they like. So a walk has the same few descriptors open at any
//! depth, and the stack does not grow. It opens each folder by its name in the one above, without following links, and goes
//! back up only if that leads to where it came from.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmodat, fchmod, fstat, openat,
    openat2, statat, unlinkat,
};
use rustix::io::Errno;

/// Removes a path, a whole tree if it is a folder, and returns the number of bytes that its files had on disk. Nothing there is
/// fine. The folder that it is in must be trusted.
///
/// # Errors
///
/// When something can't be removed; the rest can be removed later.
pub fn remove(path: &Path) -> io::Result<u64> {
    let Some(Component::Normal(name)) = path.components().next_back() else {
        return Err(io::Error::other("a path without a name can't be removed"));
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(parent.unwrap_or(Path::new("."))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        parent => remove_at(parent?.as_fd(), name),
    }
}

/// Removes the entry of this name in a folder.
///
/// # Errors
///
/// When something can't be removed.
pub fn remove_at(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<u64> {
    let Some(found) = stat(parent, name)? else { return Ok(0) };
    let mut removal = Removal { bytes: 0 };
    match is_folder(&found) {
        true => each(parent, name, &mut removal)?,
        false => removal.unlink(parent, name, &found)?,
    }
    Ok(removal.bytes)
}

/// Calls `found` with the status of everything below a folder that is no folder itself. What vanishes meanwhile is left out.
///
/// # Errors
///
/// When a folder can't be read.
pub fn look(folder: &Path, found: &mut dyn FnMut(&Stat)) -> io::Result<()> {
    each(File::open(folder)?.as_fd(), OsStr::new("."), &mut Look(found))
}

/// The steps on the way through a tree.
trait Visitor {
    /// Whether this removes: then it stays in one mount, and gives itself the rights that it needs.
    const REMOVES: bool;

    /// Handles an opened folder, and returns the names of the folders in it.
    fn enter(&mut self, folder: &OwnedFd) -> io::Result<Vec<OsString>>;

    /// Handles a folder by its name in its parent, after everything in it.
    fn leave(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
}

/// A folder on the way.
struct Level {
    /// Device and inode.
    id: (u64, u64),
    /// Its name in the folder above.
    name: OsString,
    /// The folders in it that are still ahead.
    ahead: Vec<OsString>,
}

fn each<V: Visitor>(parent: BorrowedFd<'_>, name: &OsStr, visitor: &mut V) -> io::Result<()> {
    let Some((mut here, mut level)) = open(parent, name.to_owned(), None, visitor)? else {
        return Ok(());
    };
    let mut above: Vec<Level> = Vec::new();
    loop {
        if let Some(next) = level.ahead.pop() {
            if let Some((fd, deeper)) = open(here.as_fd(), next, Some(level.id.0), visitor)? {
                above.push(mem::replace(&mut level, deeper));
                here = fd;
            }
            continue;
        }
        let Some(outer) = above.pop() else { return visitor.leave(parent, &level.name) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = openat(&here, "..", flags, Mode::empty())?;
        if id(&fstat(&up)?) != outer.id {
            return Err(io::Error::other("a folder was moved elsewhere meanwhile"));
        }
        visitor.leave(up.as_fd(), &level.name)?;
        (here, level) = (up, outer);
    }
}

/// Opens a folder and visits it. `None` if it has vanished.
fn open<V: Visitor>(
    parent: BorrowedFd<'_>,
    name: OsString,
    device: Option<u64>,
    visitor: &mut V,
) -> io::Result<Option<(OwnedFd, Level)>> {
    let mut opened = open_folder(parent, &name, V::REMOVES);
    if V::REMOVES && matches!(opened, Err(Errno::ACCESS)) {
        chmodat(parent, &name, Mode::RWXU, AtFlags::empty())?;
        opened = open_folder(parent, &name, V::REMOVES);
    }
    let mounted = || {
        let message = format!("something is mounted on a folder, {}", name.display());
        io::Error::new(io::ErrorKind::ResourceBusy, message)
    };
    let folder = match opened {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => return Err(mounted()),
        opened => opened?,
    };
    let found = fstat(&folder)?;
    if V::REMOVES {
        if device.is_some_and(|device| device != found.st_dev) {
            return Err(mounted());
        }
        if found.st_mode & 0o700 != 0o700 {
            // Only root can remove something from such a folder.
            fchmod(&folder, Mode::RWXU)?;
        }
    }
    let ahead = visitor.enter(&folder)?;
    Ok(Some((folder, Level { id: id(&found), name, ahead })))
}

/// Opens a folder by its name, and not a mount on it if it has to stay in the same mount. Kernels and filters that don't
/// know how to do this leave the comparison of devices.
fn open_folder(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    stays_in_mount: bool,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if stays_in_mount {
        match openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return opened,
        }
    }
    openat(parent, name, flags, Mode::empty())
}

/// Calls `each` with everything in a folder.
fn list(folder: &OwnedFd, each: &mut dyn FnMut(&OsStr, &Stat) -> io::Result<()>) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "."
            && name != ".."
            && let Some(found) = stat(folder.as_fd(), name)?
        {
            each(name, &found)?;
        }
    }
    Ok(())
}

struct Removal {
    bytes: u64,
}

impl Removal {
    fn unlink(&mut self, parent: BorrowedFd<'_>, name: &OsStr, found: &Stat) -> io::Result<()> {
        gone(unlinkat(parent, name, AtFlags::empty()))?;
        let is_last =
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1;
        self.bytes += if is_last { found.st_size.cast_unsigned() } else { 0 };
        Ok(())
    }
}

impl Visitor for Removal {
    const REMOVES: bool = true;

    fn enter(&mut self, folder: &OwnedFd) -> io::Result<Vec<OsString>> {
        let mut folders = Vec::new();
        list(folder, &mut |name, found| {
            if is_folder(found) {
                folders.push(name.to_owned());
                return Ok(());
            }
            self.unlink(folder.as_fd(), name, found)
        })?;
        Ok(folders)
    }

    fn leave(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        gone(unlinkat(parent, name, AtFlags::REMOVEDIR))
    }
}

struct Look<'f>(&'f mut dyn FnMut(&Stat));

impl Visitor for Look<'_> {
    const REMOVES: bool = false;

    fn enter(&mut self, folder: &OwnedFd) -> io::Result<Vec<OsString>> {
        let mut folders = Vec::new();
        list(folder, &mut |name, found| {
            match is_folder(found) {
                true => folders.push(name.to_owned()),
                false => (self.0)(found),
            }
            Ok(())
        })?;
        Ok(folders)
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &OsStr) -> io::Result<()> {
        Ok(())
    }
}

/// An entry that another process has removed at the same time counts as removed.
fn gone(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

fn stat(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Stat>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_folder(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

fn id(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use rustix::fs::mkdirat;

    use super::*;

    /// Deeper than any path can be long.
    const DEPTH: usize = 3_000;

    /// Set in the process that has few descriptors; the folder that it works on.
    const FOLDER: &str = "ISOLATOR_TEST_DEEP_FOLDER";

    /// Set in the process that has mounts of its own; the folder that they are in.
    const MOUNTS: &str = "ISOLATOR_TEST_FOLDER_WITH_MOUNTS";

    fn make_deep(top: &Path) {
        fs::create_dir(top).unwrap();
        let mut here: OwnedFd = File::open(top).unwrap().into();
        for _ in 0..DEPTH {
            mkdirat(&here, "d", Mode::RWXU).unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY;
            drop(openat(&here, "f", flags, Mode::RWXU).unwrap());
            here = openat(&here, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn deep_trees_need_few_descriptors() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            let mut files = 0;
            look(Path::new(&folder), &mut |_| files += 1).unwrap();
            assert_eq!(files, DEPTH);
            remove(Path::new(&folder)).unwrap();
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep");
        make_deep(&deep);
        let name = "folders::tests::deep_trees_need_few_descriptors";
        let limited = Command::new("sh")
            .args(["-c", r#"ulimit -n 24 && exec "$0" --exact "$1" --test-threads 1"#])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(FOLDER, &deep)
            .output()
            .unwrap();
        assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stdout));
        assert!(!deep.exists());
    }

    #[test]
    fn folders_with_mounts_are_not_emptied() {
        if let Some(folder) = std::env::var_os(MOUNTS) {
            for top in ["below", "top"] {
                let error = remove(&Path::new(&folder).join(top)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{top}: {error}");
            }
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["other", "below/a/b", "top"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("other/kept"), "kept").unwrap();
        // The same file system, so that it has the same device.
        let script = r#"for at in below/a/b top; do mount --bind "$2/other" "$2/$at" || exit; done
            exec "$0" --exact "$1" --test-threads 1"#;
        let mounted = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg("folders::tests::folders_with_mounts_are_not_emptied")
            .arg(folder.path())
            .env(MOUNTS, folder.path())
            .output()
            .unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        assert_eq!(fs::read_to_string(path("other/kept")).unwrap(), "kept");
        for name in ["below", "top"] {
            remove(&path(name)).unwrap();
        }
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (top, other) = (folder.path().join("top"), folder.path().join("other"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "kept").unwrap();
        fs::hard_link(other.join("kept"), top.join("a/same")).unwrap();
        fs::write(top.join("a/own"), "12345").unwrap();
        for link in ["link", "a/link", "a/b/link"] {
            symlink(&other, top.join(link)).unwrap();
        }
        fs::set_permissions(top.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(top.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(remove(&top).unwrap(), 5);
        assert!(!top.exists());
        assert_eq!(fs::read_to_string(other.join("kept")).unwrap(), "kept");
        // A link itself, a file, and nothing.
        symlink(&other, &top).unwrap();
        for _ in 0..2 {
            assert_eq!(remove(&top).unwrap(), 0);
        }
        assert_eq!(remove(&other.join("kept")).unwrap(), 4);
        assert!(other.is_dir());
        assert_eq!(remove(&folder.path().join("nowhere/x")).unwrap(), 0);
        assert!(remove(Path::new("/")).is_err() && remove(&top.join("..")).is_err());
    }
}
