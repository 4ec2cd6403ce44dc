//! The files of a session's workspace after its last cell.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::changes::Known;

/// The state of a file by which a change is noticed: its inode, its size and the times of its last changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The files when the last cell ended, and those that came from the server since.
#[derive(Debug, Default)]
pub(super) struct Listing {
    before: HashMap<PathBuf, Stamp>,
    now: HashMap<PathBuf, Stamp>,
}

impl Listing {
    /// Adds a file that came from the server.
    pub(super) fn sent(&mut self, path: &Path, file: &File) {
        if let Ok(metadata) = file.metadata() {
            self.before.insert(path.to_owned(), Stamp::of(&metadata));
        }
    }

    /// Ends a listing: its files are known from now on.
    pub(super) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

impl Known for Listing {
    fn has(&mut self, path: &Path, metadata: &Metadata, _: &File) -> io::Result<bool> {
        let stamp = Stamp::of(metadata);
        self.now.insert(path.to_owned(), stamp);
        Ok(self.before.get(path) == Some(&stamp))
    }

    /// A client that names a file wants it, whichever cell has made it.
    const SENDS_KNOWN: bool = true;
}

/// No known files: every file is listed.
pub(super) struct Nothing;

impl Known for Nothing {
    fn has(&mut self, _: &Path, _: &Metadata, _: &File) -> io::Result<bool> {
        Ok(false)
    }
}
