//! Layers of strangers, unpacked into a root.
//!
//! Nothing here believes a layer. A path is [checked](super::path) as text and then walked
//! [directory by directory](super::tree) below the root; what an entry makes is made relative to the open
//! directory, must not exist before, and is changed through its own descriptor.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, Timespec, Timestamps, Uid, chmodat, chownat,
    fchmod, fchown, fstat, futimens, linkat, mkdirat, symlinkat, utimensat,
};

use super::entries::{self, Header, Kind};
use super::error::{Doing, StoreError, is_full};
use super::limits::Limits;
use super::path::{self, Meaning};
use super::steps::Steps;
use super::tree::{self, DIRECTORY_MODE, Missing, Node, Place, Root};

/// Bits of a mode that an image may set: those that give a program the rights of a file's owner are not
/// among them.
pub(super) const MODE: RawMode = 0o1777;

/// What a directory gets when everything in it is there. Until then this process must be able to write to
/// it, and its time would change.
#[derive(Clone, Copy)]
struct Finish {
    mode: RawMode,
    times: Option<(i64, u32)>,
}

/// Unpacks the layers of one image, one after the other.
pub(super) struct Unpacker<'a> {
    root: &'a Root,
    limits: Limits,
    steps: &'a Steps,
    entries: u64,
    bytes: u64,
    /// By inode: a path may lead to a directory in several ways.
    directories: HashMap<u64, Finish>,
    chown: bool,
    hasher: RandomState,
}

/// What is known while one layer is unpacked.
#[derive(Default)]
struct Layer {
    /// Hashes of the paths that this layer made or went through, which its whiteouts leave alone. Hashes,
    /// because there may be millions of long paths.
    own: HashSet<u64>,
    /// The directory of the last entry, which is mostly that of the next.
    last: Option<(PathBuf, Place)>,
}

/// Why an entry is not unpacked.
enum Fault {
    Refused(String),
    Io(io::Error),
    Store(StoreError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<&str> for Fault {
    fn from(reason: &str) -> Self {
        Self::Refused(reason.to_owned())
    }
}

impl<'a> Unpacker<'a> {
    /// Unpacks into an empty root.
    pub(super) fn new(root: &'a Root, limits: Limits, steps: &'a Steps) -> Self {
        Self {
            root,
            limits,
            steps,
            entries: 0,
            bytes: 0,
            directories: HashMap::new(),
            chown: rustix::process::geteuid().is_root(),
            hasher: RandomState::new(),
        }
    }

    /// Unpacks a layer over those before it and reads its archive to the end. Returns whether the archive
    /// has a mark of its end.
    pub(super) fn layer(&mut self, label: &str, archive: impl Read) -> Result<bool, StoreError> {
        let mut layer = Layer::default();
        let mut entry = String::new();
        let unpacked = entries::for_each(archive, |header, content| {
            entry = header.path.escape_ascii().to_string();
            self.entry(&mut layer, header, content)
        });
        unpacked.map_err(|fault| match fault {
            Fault::Store(error) => error,
            Fault::Io(source) if is_full(&source) => {
                StoreError::Io { what: format!("can't unpack {label}"), source }
            }
            Fault::Io(error) => {
                StoreError::Entry { layer: label.to_owned(), entry, reason: error.to_string() }
            }
            Fault::Refused(reason) => StoreError::Entry { layer: label.to_owned(), entry, reason },
        })
    }

    fn entry(
        &mut self,
        layer: &mut Layer,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<(), Fault> {
        self.steps.go_on().map_err(Fault::Store)?;
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(format!("there are more than {} entries", self.limits.entries)
                .as_str()
                .into());
        }
        match path::meaning(&header.path, self.limits.path)? {
            Meaning::Root => self.change_root(header),
            Meaning::Opaque { directory } => {
                let Some(place) = self.find(&directory)? else { return Ok(()) };
                layer.last = None;
                for name in tree::names(&place.fd)? {
                    self.hide(layer, &place, &name)?;
                }
                Ok(())
            }
            Meaning::Hidden { parent, name } => {
                let Some(place) = self.find(&parent)? else { return Ok(()) };
                layer.last = None;
                self.hide(layer, &place, name.as_os_str())
            }
            Meaning::Named { parent, name } => {
                let place = self.parent(layer, &parent)?;
                let name = name.as_os_str();
                layer.own.insert(self.hasher.hash_one(place.path.join(name)));
                if self.make(&place, name, header, content)? {
                    layer.last = Some((parent, place));
                }
                Ok(())
            }
        }
    }

    fn change_root(&mut self, header: &Header) -> Result<(), Fault> {
        if header.kind != Kind::Directory {
            return Err("the root can be nothing but a directory".into());
        }
        self.change_directory(self.root.fd(), header)
    }

    /// The directory of an entry, which is made if no entry told of it.
    fn parent(&mut self, layer: &mut Layer, path: &Path) -> Result<Place, Fault> {
        if let Some((last, place)) = layer.last.take()
            && last == path
        {
            return Ok(place);
        }
        let place = self.root.directory(path, Missing::Make)?;
        for inode in &place.made {
            self.directories.insert(*inode, Finish { mode: DIRECTORY_MODE, times: None });
        }
        for ancestor in place.path.ancestors() {
            layer.own.insert(self.hasher.hash_one(ancestor));
        }
        Ok(place)
    }

    /// A directory that a whiteout is in; where there is none, there is nothing to hide.
    fn find(&self, path: &Path) -> Result<Option<Place>, Fault> {
        match self.root.directory(path, Missing::Fail) {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what earlier layers have at a name; what is of this layer stays.
    fn hide(&self, layer: &Layer, place: &Place, name: &OsStr) -> Result<(), Fault> {
        let path = place.path.join(name);
        if !layer.own.contains(&self.hasher.hash_one(&path)) {
            tree::remove(&place.fd, name)?;
            return Ok(());
        }
        let found = tree::stat(&place.fd, name)?;
        if found.is_some_and(|found| tree::kind(&found) == FileType::Directory) {
            let place = Place { fd: tree::enter(&place.fd, name)?, path, made: Vec::new() };
            for name in tree::names(&place.fd)? {
                self.hide(layer, &place, &name)?;
            }
        }
        Ok(())
    }

    /// Makes what an entry says. Returns whether the directories on the way are still the same.
    fn make(
        &mut self,
        place: &Place,
        name: &OsStr,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<bool, Fault> {
        match header.kind {
            Kind::Directory => {
                let existing = tree::stat(&place.fd, name)?;
                let is_directory = |found| tree::kind(&found) == FileType::Directory;
                let keep = existing.is_some_and(is_directory) || clear(place, name)?;
                if !existing.is_some_and(is_directory) {
                    mkdirat(&place.fd, name, Mode::RWXU)?;
                }
                let fd = tree::enter(&place.fd, name)?;
                self.change_directory(&fd, header)?;
                Ok(keep)
            }
            Kind::File => {
                let keep = clear(place, name)?;
                self.write(place, name, header, content)?;
                Ok(keep)
            }
            Kind::SymbolicLink => {
                let depth = place.path.iter().count();
                path::target(&header.link, depth, self.limits.path)?;
                let keep = clear(place, name)?;
                symlinkat(OsStr::from_bytes(&header.link), &place.fd, name)?;
                if self.chown {
                    let (user, group) = owner(header)?;
                    chownat(&place.fd, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                utimensat(&place.fd, name, &times(header.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(keep)
            }
            Kind::HardLink => self.link(place, name, header),
            Kind::Other(what) => Err(format!("it is {what}").as_str().into()),
        }
    }

    fn write(
        &mut self,
        place: &Place,
        name: &OsStr,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<(), Fault> {
        // Before the first byte: what is announced to be too much is not begun.
        let bytes = self.bytes.saturating_add(header.size);
        if bytes > self.limits.bytes {
            return Err(format!("its files have more than {} bytes", self.limits.bytes)
                .as_str()
                .into());
        }
        self.bytes = bytes;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = tree::open(&place.fd, name, flags)?;
        let mut written = 0;
        let mut buffer = vec![0; BUFFER.min(header.size.max(1) as usize)];
        loop {
            let read = content.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            file.write_all(&buffer[..read])?;
            written += read as u64;
            self.steps.go_on().map_err(Fault::Store)?;
        }
        if written != header.size {
            return Err("the archive ends before the file does".into());
        }
        if self.chown {
            let (user, group) = owner(header)?;
            fchown(&file, user, group)?;
        }
        fchmod(&file, Mode::from_raw_mode(header.mode & MODE))?;
        futimens(&file, &times(header.mtime))?;
        Ok(())
    }

    /// Gives a file another name. What a link of a layer leads to must be a file of the image already.
    fn link(&self, place: &Place, name: &OsStr, header: &Header) -> Result<bool, Fault> {
        let target = path::relative(&header.link, self.limits.path)?;
        let nothing = || Fault::from("the link leads to no file of the image");
        let (Some(parent), Some(file)) = (target.parent(), target.file_name()) else {
            return Err(nothing());
        };
        let from = self.find(parent)?.ok_or_else(nothing)?;
        let found = tree::stat(&from.fd, file)?.ok_or_else(nothing)?;
        if tree::kind(&found) != FileType::RegularFile {
            return Err(nothing());
        }
        let existing = tree::stat(&place.fd, name)?;
        if existing
            .is_some_and(|other| (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino))
        {
            return Ok(true);
        }
        let keep = clear(place, name)?;
        linkat(&from.fd, file, &place.fd, name, AtFlags::empty())?;
        Ok(keep)
    }

    fn change_directory(&mut self, fd: &OwnedFd, header: &Header) -> Result<(), Fault> {
        if self.chown {
            let (user, group) = owner(header)?;
            fchown(fd, user, group)?;
        }
        let finish = Finish { mode: header.mode & MODE, times: Some(header.mtime) };
        self.directories.insert(fstat(fd)?.st_ino, finish);
        Ok(())
    }

    /// Gives the directories their modes and times and looks once more at everything that is there.
    /// Returns the size of the files.
    pub(super) fn finish(self) -> Result<u64, StoreError> {
        check(self.root, &mut |directory, inode| {
            let Some(finish) = self.directories.get(&inode) else { return Ok(()) };
            fchmod(directory, Mode::from_raw_mode(finish.mode))?;
            if let Some(mtime) = finish.times {
                futimens(directory, &times(mtime))?;
            }
            Ok(())
        })
    }
}

/// Read from an archive at once, in bytes.
const BUFFER: usize = 128 * 1024;

/// Makes room for an entry. Returns whether no directory went away, nor a link that may lead to one.
fn clear(place: &Place, name: &OsStr) -> Result<bool, Fault> {
    let Some(existing) = tree::stat(&place.fd, name)? else { return Ok(true) };
    tree::remove(&place.fd, name)?;
    Ok(tree::kind(&existing) == FileType::RegularFile)
}

fn owner(header: &Header) -> Result<(Option<Uid>, Option<Gid>), Fault> {
    // The largest number would mean that nothing is to be changed.
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    let unknown = "its owner is a number that no user has";
    let user = id(header.uid).ok_or(unknown)?;
    let group = id(header.gid).ok_or(unknown)?;
    Ok((Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))
}

pub(super) fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Bits of a mode that give a program the rights of a file's owner or group.
const RIGHTS: RawMode = 0o6000;

/// Looks at everything in a root: it holds files, directories and symbolic links and nothing else, and none
/// gives a program other rights. Finishes each directory after what is in it. Returns the size of the files.
pub(super) fn check(
    root: &Root,
    finish: &mut dyn FnMut(&OwnedFd, u64) -> io::Result<()>,
) -> Result<u64, StoreError> {
    let mut size: u64 = 0;
    let mut counted = HashSet::new();
    let walked = tree::walk(root, &mut |visit| -> io::Result<()> {
        match (&visit.node, tree::kind(visit.stat)) {
            (Node::Enter, _) | (_, FileType::Symlink) => {}
            (Node::Leave(directory), _) => {
                if visit.stat.st_mode & RIGHTS != 0 {
                    fchmod(directory, Mode::from_raw_mode(visit.stat.st_mode & MODE))?;
                }
                finish(directory, visit.stat.st_ino)?;
            }
            (Node::Leaf { parent, name }, FileType::RegularFile) => {
                if visit.stat.st_mode & RIGHTS != 0 {
                    let mode = Mode::from_raw_mode(visit.stat.st_mode & MODE);
                    chmodat(parent, *name, mode, AtFlags::empty())?;
                }
                if visit.stat.st_nlink == 1 || counted.insert(visit.stat.st_ino) {
                    size = size.saturating_add(visit.stat.st_size as u64);
                }
            }
            (Node::Leaf { .. }, kind) => {
                let path = visit.path.display();
                return Err(io::Error::other(format!(
                    "{path} is a {kind:?}, which no image may hold"
                )));
            }
        }
        Ok(())
    });
    walked.doing(|| "can't check what was unpacked".to_owned())?;
    Ok(size)
}
