//! A look at all entries of a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chmod, fstat, openat, statat};
use rustix::io::Errno;

use super::parent;
use crate::changes::FOLDER;

/// Most entries of a workspace that are looked at, the most bytes of their paths, and the longest time. The next cell waits for it.
pub(super) const MAX_ENTRIES: usize = 5_000;
const MAX_PATHS: usize = 2 << 20;
const MAX_TIME: Duration = Duration::from_millis(500);

/// Most looks at a workspace in which entries are replaced meanwhile, until one finds all of them.
const MAX_LOOKS: usize = 3;

/// Deepest nesting of folders; each that is open takes a descriptor.
const MAX_DEPTH: usize = 32;

/// The state of an entry by which a change is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) modified: (i64, u64),
    pub(super) changed: (i64, u64),
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Those of a folder change with what is in it.
        let is_folder = kind == FileType::Directory;
        let times =
            |seconds: i64, nanoseconds| if is_folder { (0, 0) } else { (seconds, nanoseconds) };
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            inode: stat.st_ino,
            size: if is_folder { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) },
            modified: times(stat.st_mtime, stat.st_mtime_nsec),
            changed: times(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The way to deal with folders that may not be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// They are left as they are.
    Leave,
    /// They get a mode with which they can be listed.
    Open,
}

/// What was found.
pub(super) struct Look {
    pub(super) found: BTreeMap<PathBuf, Stamp>,
    /// Folders of which it is not known what is in them.
    pub(super) hidden: BTreeSet<PathBuf>,
    /// Whether that is all, apart from what is in those.
    pub(super) is_complete: bool,
    closed: Closed,
    until: Instant,
    /// Bytes of all paths.
    paths: usize,
    /// Entries that were looked at by their names.
    known: usize,
    /// Whether an entry was gone before it was looked at. Perhaps it has another name now, which was not seen.
    is_torn: bool,
}

impl Look {
    pub(super) fn at(workdir: &Path, closed: Closed) -> Self {
        let until = Instant::now() + MAX_TIME;
        let once = || {
            let mut look = Self {
                found: BTreeMap::new(),
                hidden: BTreeSet::new(),
                is_complete: true,
                closed,
                until,
                paths: 0,
                known: 0,
                is_torn: false,
            };
            match openat(CWD, workdir, FOLDER, Mode::empty())
                .or_else(|error| look.reopen(error, || openat(CWD, workdir, PLACE, Mode::empty())))
            {
                Ok(folder) => look.folder(&folder, Path::new(""), 0),
                Err(_) => look.is_complete = false,
            }
            look
        };
        let mut look = once();
        for _ in 1..MAX_LOOKS {
            if !look.is_torn || !look.is_complete {
                break;
            }
            look = once();
        }
        look.is_complete &= !look.is_torn;
        look
    }

    /// Looks at entries that are known, if there are too many to find all of them. Returns those that are gone.
    pub(super) fn gone<'a>(
        &mut self,
        workdir: &Path,
        known: impl Iterator<Item = &'a PathBuf>,
    ) -> Vec<PathBuf> {
        let until = Instant::now() + MAX_TIME;
        let mut gone = Vec::new();
        for path in known {
            if self.found.contains_key(path) || is_below(&self.hidden, path) {
                continue;
            }
            if self.is_complete {
                gone.push(path.clone());
                continue;
            }
            // One that is replaced meanwhile has perhaps another name now.
            if self.is_torn || self.known >= MAX_ENTRIES || Instant::now() >= until {
                break;
            }
            self.known += 1;
            let stat = parent(workdir, path)
                .and_then(|(folder, name)| Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?));
            match stat.map_err(|error| Errno::from_io_error(&error)) {
                Ok(stat) => drop(self.found.insert(path.clone(), Stamp::of(&stat))),
                Err(Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => gone.push(path.clone()),
                Err(_) => {}
            }
        }
        gone
    }

    fn folder(&mut self, folder: &OwnedFd, path: &Path, depth: usize) {
        let Ok(entries) = Dir::read_from(folder) else {
            self.is_complete = false;
            return;
        };
        for entry in entries {
            if self.found.len() >= MAX_ENTRIES
                || self.paths >= MAX_PATHS
                || Instant::now() >= self.until
            {
                self.is_complete = false;
            }
            let (Ok(entry), true) = (entry, self.is_complete) else {
                self.is_complete = false;
                return;
            };
            let name: CString = entry.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                self.is_torn = true;
                continue;
            };
            let below = path.join(OsStr::from_bytes(name.to_bytes()));
            self.paths += below.as_os_str().len();
            let mut stamp = Stamp::of(&stat);
            if stamp.kind == FileType::Directory {
                match self.inner(folder, &name) {
                    Ok((inner, now)) if depth < MAX_DEPTH => {
                        stamp.mode = now;
                        self.found.insert(below.clone(), stamp);
                        self.folder(&inner, &below, depth + 1);
                        continue;
                    }
                    Err(Errno::NOENT | Errno::NOTDIR) => self.is_torn = true,
                    Ok(_) | Err(Errno::ACCESS) => drop(self.hidden.insert(below.clone())),
                    Err(_) => self.is_complete = false,
                }
            }
            self.found.insert(below, stamp);
        }
    }

    /// Opens a folder. Also returns its mode, which may be another then.
    fn inner(&self, folder: &OwnedFd, name: &CStr) -> Result<(OwnedFd, u32), Errno> {
        let inner = openat(folder, name, FOLDER, Mode::empty())
            .or_else(|error| self.reopen(error, || openat(folder, name, PLACE, Mode::empty())))?;
        let mode = fstat(&inner)?.st_mode & 0o7777;
        Ok((inner, mode))
    }

    /// Opens a folder that was closed to the runner, if that is wanted. `find` finds it without opening it.
    fn reopen(
        &self,
        error: Errno,
        find: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        if error != Errno::ACCESS || self.closed == Closed::Leave {
            return Err(error);
        }
        let found = find()?;
        let mode = Mode::from_raw_mode(fstat(&found)?.st_mode & 0o777) | Mode::RWXU;
        set_mode(&found, mode)?;
        openat(&found, c".", FOLDER, Mode::empty())
    }
}

/// A folder, but not what is in it.
const PLACE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether something is below one of these folders.
pub(super) fn is_below(folders: &BTreeSet<PathBuf>, path: &Path) -> bool {
    !folders.is_empty() && path.ancestors().skip(1).any(|folder| folders.contains(folder))
}

/// Sets the mode of something that was found with [`OFlags::PATH`], whatever has its name meanwhile.
pub(super) fn set_mode(found: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)
}
