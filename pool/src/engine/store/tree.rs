//! Directory trees, walked by descriptors: every step is a call relative to an open directory, so that neither
//! a name nor a link leads out of the tree.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fchmod, fstat, mkdirat,
    openat2, readlinkat, statat,
};
use rustix::io::Errno;

use super::path::MAX_DEPTH;

/// Most symbolic links on the way to a directory, as in the kernel.
const MAX_LINKS: usize = 40;

/// Most names on the way to a directory, including those in links: otherwise a few links could lead up and
/// down for hours.
const MAX_STEPS: usize = 1024;

/// Mode of a directory that has no entry in a layer.
pub(super) const DIRECTORY_MODE: RawMode = 0o755;

/// The kind of a file, in words.
pub(super) const fn in_words(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "folder",
        FileType::Symlink => "link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "file of an unknown kind",
    }
}

/// The root of a tree.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

/// A directory of a tree.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) fd: OwnedFd,
    /// Its path below the root, without links.
    pub(super) path: PathBuf,
    /// Inodes of the directories that were created on the way.
    pub(super) made: Vec<u64>,
}

/// How a missing directory is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    Fail,
    Make,
}

impl Root {
    /// Opens the root of a tree, by a trusted path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())?))
    }

    /// The root itself.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Opens the directory at a path. Links on the way are followed as in a sandbox: `/` is this root.
    pub(super) fn directory(&self, path: &Path, missing: IfMissing) -> io::Result<OpenDirectory> {
        let mut place =
            OpenDirectory { fd: self.0.try_clone()?, path: PathBuf::new(), made: Vec::new() };
        let mut ahead = Vec::new();
        push(&mut ahead, path);
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = ahead.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(Errno::LOOP.into());
            }
            if name == ".." {
                place.path.pop();
                place.fd = self.reopen(&place.path)?;
                continue;
            }
            let fd = match enter(&place.fd, &name) {
                Err(Errno::NOENT) if missing == IfMissing::Make => {
                    let (fd, made) = make_directory(&place.fd, &name)?;
                    place.made.extend(made);
                    fd
                }
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let target = link(&place.fd, &name)?;
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    if target.is_absolute() {
                        place.path.clear();
                        place.fd = self.0.try_clone()?;
                    }
                    push(&mut ahead, &target);
                    continue;
                }
                other => other?,
            };
            place.fd = fd;
            place.path.push(name);
            if place.path.iter().count() > MAX_DEPTH {
                return Err(io::Error::other("too many directories are nested in each other"));
            }
        }
        Ok(place)
    }

    /// Opens a directory whose path is known to contain no links.
    fn reopen(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(if path.as_os_str().is_empty() { self.0.try_clone()? } else { enter(&self.0, path)? })
    }
}

/// Pushes the parts of a path onto the stack of those still to be opened.
fn push(ahead: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    ahead.extend(names);
}

/// Makes a directory and opens it. Also returns its inode, unless another process has made it just now.
pub(super) fn make_directory(
    parent: &OwnedFd,
    name: &OsStr,
) -> Result<(OwnedFd, Option<u64>), Errno> {
    let mode = Mode::from_raw_mode(DIRECTORY_MODE);
    match mkdirat(parent, name, mode) {
        Ok(()) => {
            let fd = enter(parent, name)?;
            // Whatever the umask of this process is.
            fchmod(&fd, mode)?;
            let inode = fstat(&fd)?.st_ino;
            Ok((fd, Some(inode)))
        }
        // Another process needs the same place in an image.
        Err(Errno::EXIST) => Ok((enter(parent, name)?, None)),
        Err(error) => Err(error),
    }
}

/// Opens a directory below another, by a path without links.
pub(super) fn enter(directory: &OwnedFd, path: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(directory, path.as_ref(), flags, Mode::empty(), BELOW)
}

/// Opens a file in a directory, without following a link.
pub(super) fn open(
    directory: &OwnedFd,
    name: &OsStr,
    flags: OFlags,
) -> Result<std::fs::File, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if flags.contains(OFlags::CREATE) { 0o600 } else { 0 };
    openat2(directory, name, flags, Mode::from_raw_mode(mode), BELOW).map(Into::into)
}

/// Looks up a name without following any link.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The target of a symbolic link; `NOTDIR` if it is not a link.
pub(super) fn link(directory: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    match readlinkat(directory, name, Vec::new()) {
        Ok(target) => Ok(OsString::from_vec(target.into_bytes()).into()),
        Err(Errno::INVAL) => Err(Errno::NOTDIR.into()),
        Err(error) => Err(error.into()),
    }
}

/// The status of the file at a name, if there is one.
pub(super) fn stat(directory: &OwnedFd, name: impl AsRef<Path>) -> io::Result<Option<Stat>> {
    match statat(directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The file type in a status.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The names in a directory, in their order.
pub(super) fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// One step of a walk through a tree.
pub(super) struct Visit<'a> {
    /// Below the root, which itself has an empty path.
    pub(super) path: &'a Path,
    pub(super) stat: &'a Stat,
    pub(super) node: Node<'a>,
}

/// The node at a path of a tree.
pub(super) enum Node<'a> {
    /// A directory, before its contents.
    Enter,
    /// A directory, after its contents.
    Leave(&'a OwnedFd),
    /// Anything else, by its name in a directory.
    Leaf { parent: &'a OwnedFd, name: &'a OsStr },
}

/// Walks through a tree, in the order of the names.
pub(super) fn walk<E: From<io::Error>>(
    root: &Root,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<(), E>,
) -> Result<(), E> {
    walk_in(&root.0, &mut PathBuf::new(), visit)
}

fn walk_in<E: From<io::Error>>(
    fd: &OwnedFd,
    path: &mut PathBuf,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if path.iter().count() > MAX_DEPTH {
        return Err(io::Error::other("too many directories are nested in each other").into());
    }
    let status = fstat(fd.as_fd()).map_err(io::Error::from)?;
    visit(Visit { path, stat: &status, node: Node::Enter })?;
    for name in names(fd)? {
        let Some(found) = stat(fd, &name)? else { continue };
        path.push(&name);
        if kind(&found) == FileType::Directory {
            walk_in(&enter(fd, &name).map_err(io::Error::from)?, path, visit)?;
        } else {
            visit(Visit { path, stat: &found, node: Node::Leaf { parent: fd, name: &name } })?;
        }
        path.pop();
    }
    visit(Visit { path, stat: &status, node: Node::Leave(fd) })
}
