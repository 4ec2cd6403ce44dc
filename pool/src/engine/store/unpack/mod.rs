//! Unpacks untrusted layers into a root.
//!
//! Nothing in a layer is trusted. A path is [checked](super::path) as text and then walked
//! [directory by directory](super::tree) below the root; an entry is created relative to the open
//! directory, must not exist before, and is changed through its own descriptor.

mod make;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, RawMode, fchmod, futimens};

use super::blocking_job::BlockingJob;
use super::check::{check, times};
use super::description::Description;
use super::error::{Canceled, StoreError, is_full};
use super::limits::Limits;
use super::mountpoints;
use super::path::{self, Meaning};
use super::tar_reader::{self, EntryKind, Header};
use super::tree::{self, DIRECTORY_MODE, IfMissing, OpenDirectory, Root};
use crate::folders;

/// The mode and times that a directory gets when its contents are complete. Until then this process must be
/// able to write to it, and its time would change.
#[derive(Clone, Copy)]
struct DirectoryAttributes {
    mode: RawMode,
    times: Option<(i64, u32)>,
}

/// Unpacks the layers of one image, one after the other.
pub(super) struct Unpacker<'a> {
    root: &'a Root,
    limits: Limits,
    job: &'a BlockingJob,
    entries: u64,
    bytes: u64,
    /// By inode: a path may lead to a directory in several ways.
    directories: HashMap<u64, DirectoryAttributes>,
    chown: bool,
    hasher: RandomState,
}

/// The state while one layer is unpacked.
#[derive(Default)]
struct LayerState {
    /// Hashes of the paths that this layer created or used, which its whiteouts must not hide. Hashes, because
    /// there may be millions of long paths.
    own: HashSet<u64>,
    /// The directory of the last entry, which is usually that of the next one.
    last: Option<(PathBuf, OpenDirectory)>,
}

/// Why an entry was not unpacked.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Canceled(#[from] Canceled),
}

impl From<rustix::io::Errno> for EntryError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<&str> for EntryError {
    fn from(reason: &str) -> Self {
        Self::Refused(reason.to_owned())
    }
}

impl<'a> Unpacker<'a> {
    /// Unpacks into an empty root.
    pub(super) fn new(root: &'a Root, limits: Limits, job: &'a BlockingJob) -> Self {
        Self {
            root,
            limits,
            job,
            entries: 0,
            bytes: 0,
            directories: HashMap::new(),
            chown: rustix::process::geteuid().is_root(),
            hasher: RandomState::new(),
        }
    }

    /// Unpacks a layer over those before it and reads its archive to the end. Returns whether the archive
    /// has an end-of-archive mark.
    pub(super) fn layer(&mut self, label: &str, archive: impl Read) -> Result<bool, StoreError> {
        let mut layer = LayerState::default();
        let mut entry = String::new();
        let unpacked = tar_reader::for_each(archive, |header, content| {
            entry = header.path.escape_ascii().to_string();
            self.entry(&mut layer, header, content)
        });
        unpacked.map_err(|error| match error {
            EntryError::Canceled(canceled) => canceled.into(),
            EntryError::Io(source) if is_full(&source) => {
                StoreError::Io { what: format!("can't unpack {label}"), source }
            }
            error => {
                StoreError::Entry { layer: label.to_owned(), entry, reason: error.to_string() }
            }
        })
    }

    fn entry(
        &mut self,
        layer: &mut LayerState,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<(), EntryError> {
        self.job.check_canceled()?;
        self.count(1)?;
        match path::meaning(&header.path, self.limits.path)? {
            Meaning::Root => self.change_root(header),
            Meaning::Opaque { directory } => {
                let Some(place) = self.find(&directory)? else { return Ok(()) };
                layer.last = None;
                self.hide_all(layer, &place)
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

    /// Counts work against the limit of entries: a whiteout costs as much as its directory has names, and a path
    /// as much as it needs directories.
    fn count(&mut self, entries: usize) -> Result<(), EntryError> {
        self.entries = self.entries.saturating_add(entries as u64);
        if self.entries <= self.limits.entries {
            return Ok(());
        }
        Err(EntryError::Refused(format!("there are more than {} entries", self.limits.entries)))
    }

    fn change_root(&mut self, header: &Header) -> Result<(), EntryError> {
        if header.kind != EntryKind::Directory {
            return Err("the root must be a directory".into());
        }
        self.change_directory(self.root.fd(), header)
    }

    /// The directory of an entry, which is created if it is missing.
    fn parent(&mut self, layer: &mut LayerState, path: &Path) -> Result<OpenDirectory, EntryError> {
        if let Some((last, place)) = layer.last.take()
            && last == path
        {
            return Ok(place);
        }
        let place = self.root.directory(path, IfMissing::Make)?;
        self.count(place.made.len())?;
        self.add_directories(&place.made);
        for ancestor in place.path.ancestors() {
            layer.own.insert(self.hasher.hash_one(ancestor));
        }
        Ok(place)
    }

    /// The directory of a whiteout; `None` if there is none and so nothing to hide.
    fn find(&self, path: &Path) -> Result<Option<OpenDirectory>, EntryError> {
        match self.root.directory(path, IfMissing::Fail) {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn hide_all(&mut self, layer: &LayerState, place: &OpenDirectory) -> Result<(), EntryError> {
        let names = tree::names(&place.fd)?;
        self.count(names.len())?;
        names.iter().try_for_each(|name| self.hide(layer, place, name))
    }

    /// Removes the content of earlier layers at a name; that of this layer stays.
    fn hide(
        &mut self,
        layer: &LayerState,
        place: &OpenDirectory,
        name: &OsStr,
    ) -> Result<(), EntryError> {
        let path = place.path.join(name);
        if !layer.own.contains(&self.hasher.hash_one(&path)) {
            folders::remove_at(place.fd.as_fd(), name)?;
            return Ok(());
        }
        let found = tree::stat(&place.fd, name)?;
        if found.is_some_and(|found| tree::kind(&found) == FileType::Directory) {
            let place = OpenDirectory { fd: tree::enter(&place.fd, name)?, path, made: Vec::new() };
            self.hide_all(layer, &place)?;
        }
        Ok(())
    }

    /// Makes the image's mount points. Must be called before directories get their modes, which may forbid it.
    pub(super) fn make_mountpoints(
        &mut self,
        image: &str,
        description: Description,
    ) -> Result<Description, StoreError> {
        let (description, made) = mountpoints::prepare(self.root, image, description)?;
        self.add_directories(&made);
        Ok(description)
    }

    /// Notes directories that have no entry in a layer. Their inodes may be those of removed directories.
    fn add_directories(&mut self, inodes: &[u64]) {
        let attributes = DirectoryAttributes { mode: DIRECTORY_MODE, times: None };
        self.directories.extend(inodes.iter().map(|inode| (*inode, attributes)));
    }

    /// Sets the modes and times of directories and checks everything once more. Returns the size of the files.
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
