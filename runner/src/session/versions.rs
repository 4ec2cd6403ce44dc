//! The files of a workspace as they were before earlier cells, so that undoing a cell undoes its files.
//!
//! After each answer the runner looks at the workspace, and copies the files that have changed. Before a cell begins, nothing has to
//! be copied: a mark notes where the cell begins, and what it changes is noted there, with what was there before. The copies are in
//! the memory of the runner, which counts for the sandbox, so they have a limit, and are given up before checkpoints.
//!
//! A program may change everything at any time. So no link is followed, a copy of a file that changed meanwhile is none, and only regular
//! files, folders and links come back.

mod look;
mod moved;
mod restore;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isolator_runner::wire::UndoneFiles;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat, statat};

use self::look::{Closed, Look, MAX_ENTRIES, Stamp, is_below};
use self::restore::Restored;
use crate::changes::FOLDER;

/// How long copying may take after each look. The next cell waits for it.
const MAX_COPY_TIME: Duration = Duration::from_millis(500);

/// How far the clock of files can be behind.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Most bytes of all copies.
const MAX_BYTES: u64 = 64 << 20;

/// The part of the memory of a sandbox that copies can have.
const PART_OF_MEMORY: u64 = 8;

/// Copies that take less than this part of what they may are kept also when memory is short.
const WORTH_GIVING_UP: u64 = 64;

/// How much an entry counts besides its name and its content, in bytes.
const ENTRY_BYTES: u64 = 256;

/// Most bytes of what is noted of all cells besides copies. Older cells are given up for newer ones.
const MAX_NOTED: u64 = 16 << 20;

/// A regular file, for reading. Non-blocking, in case a pipe has taken its place.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is known of a file, folder or link.
#[derive(Debug, Clone)]
struct Entry {
    stamp: Stamp,
    /// The content of a file, or the target of a link. `None` if there is no copy.
    content: Option<Arc<Content>>,
}

/// A copy. All together have a limit.
#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    weight: u64,
    total: Arc<AtomicU64>,
}

impl Drop for Content {
    fn drop(&mut self) {
        self.total.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

/// The begin of a cell.
#[derive(Debug)]
struct Mark {
    /// The context of the cell, and the number of cells before it there.
    context: u32,
    depth: u32,
    /// The time. What has changed since has a later one.
    began: (i64, u64),
    /// Whether the client has worked in the sandbox since, so that new files may be the client's.
    is_shared: bool,
    /// How entries were that have changed since, until the next mark. `None`: they were not there.
    before: BTreeMap<PathBuf, Option<Entry>>,
    /// How much that is, in bytes, without copies.
    noted: u64,
    /// Whether all entries were known then and since.
    is_complete: bool,
}

/// The versions of the files of a workspace.
#[derive(Debug)]
pub(super) struct Versions {
    workdir: PathBuf,
    /// The number of marks that are kept; zero if nothing is.
    most: usize,
    /// Most bytes of all copies, and how many there are.
    limit: u64,
    total: Arc<AtomicU64>,
    /// The entries at the last look.
    now: BTreeMap<PathBuf, Entry>,
    /// Whether that was all of them, apart from what is in those folders.
    is_complete: bool,
    hidden: BTreeSet<PathBuf>,
    marks: VecDeque<Mark>,
    /// Whether the client may have written files since the last look.
    is_written: bool,
    /// How much memory new copies can have before it is short, in bytes.
    room: u64,
}

impl Default for Versions {
    /// Of nothing.
    fn default() -> Self {
        Self::new(PathBuf::new(), 0, None)
    }
}

impl Versions {
    /// Of a workspace in a sandbox with that memory. Keeps the files before `most` cells.
    pub(super) fn new(workdir: PathBuf, most: u32, memory: Option<u64>) -> Self {
        let part = memory.map_or(MAX_BYTES, |memory| memory / PART_OF_MEMORY);
        Self {
            workdir,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            limit: part.min(MAX_BYTES),
            total: Arc::default(),
            now: BTreeMap::new(),
            is_complete: true,
            hidden: BTreeSet::new(),
            marks: VecDeque::new(),
            is_written: false,
            room: 0,
        }
    }

    /// Notes that the client writes files which belong to no cell. Undoing a cell leaves them.
    pub(super) fn note_written(&mut self) {
        self.is_written = true;
    }

    /// Notes that the client works in the sandbox while the newest cell runs, and may write files.
    pub(super) fn note_shared(&mut self) {
        if let Some(mark) = self.marks.back_mut() {
            mark.is_shared = true;
        }
    }

    /// A cell is about to begin, with the files that come with it.
    pub(super) fn begin(&mut self, context: u32, depth: u32) {
        if self.most == 0 {
            return;
        }
        if self.is_written {
            self.note_changes(true, Closed::Leave);
        }
        let is_complete = self.is_complete && self.hidden.is_empty();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = now.saturating_sub(CLOCK_STEP);
        self.marks.push_back(Mark {
            context,
            depth,
            began: (i64::try_from(now.as_secs()).unwrap_or(0), now.subsec_nanos().into()),
            is_shared: false,
            before: BTreeMap::new(),
            noted: 0,
            is_complete,
        });
        while self.marks.len() > self.most {
            self.marks.pop_front();
        }
    }

    /// Notes what has changed. To be called while the sandbox waits for the next cell. `room` is how much memory copies can have before it
    /// is short, if that is known.
    pub(super) fn rest(&mut self, room: Option<u64>) {
        if self.most > 0 {
            self.room = room.unwrap_or(u64::MAX);
            self.note_changes(true, Closed::Leave);
        }
    }

    fn note_changes(&mut self, copies: bool, closed: Closed) {
        let is_written = std::mem::take(&mut self.is_written);
        let changed = self.look(copies, closed);
        if let Some(mark) = self.marks.back_mut() {
            mark.is_complete &= self.is_complete && self.hidden.is_empty();
        }
        for (path, before) in changed {
            if is_written {
                // It belongs to no cell.
                for mark in &mut self.marks {
                    mark.before.remove(&path);
                }
            } else if let Some(mark) = self.marks.back_mut() {
                mark.noted += path.as_os_str().len() as u64 + ENTRY_BYTES;
                mark.before.entry(path).or_insert(before);
            }
        }
        let mut noted: u64 = self.marks.iter().map(|mark| mark.noted).sum();
        while noted > MAX_NOTED && self.marks.len() > 1 {
            noted -= self.marks.pop_front().map_or(0, |mark| mark.noted);
        }
    }

    /// Gives up all copies, if that makes room. Returns whether it did.
    pub(super) fn give_up(&mut self) -> bool {
        if self.total.load(Ordering::Relaxed) <= self.limit / WORTH_GIVING_UP {
            return false;
        }
        self.marks.clear();
        for entry in self.now.values_mut() {
            entry.content = None;
        }
        true
    }

    /// Puts the files back that were there when a context had done `depth` cells. Says which it could not, and calls `restored` for
    /// each file that it has written. `None` if it is not known how they were.
    ///
    /// Files that cells of other contexts or the client may have written stay.
    pub(super) fn undo(
        &mut self,
        context: u32,
        depth: u32,
        mut restored: impl FnMut(&Path, &File),
    ) -> Option<UndoneFiles> {
        let found = self.marks.iter().rposition(|it| (it.context, it.depth) == (context, depth))?;
        if self.is_written {
            // The client has not opened the folders that are opened now.
            self.note_changes(false, Closed::Leave);
        }
        self.note_changes(false, Closed::Open);
        let mut wanted = BTreeMap::new();
        let mut kept = BTreeSet::new();
        let mut others = Vec::new();
        let mut is_complete = true;
        // What was in a folder that was moved is as old as before.
        let known: BTreeSet<_> = (self.marks.range(found..))
            .flat_map(|mark| mark.before.values().flatten())
            .map(|entry| (entry.stamp.inode, entry.stamp.changed))
            .collect();
        for mut mark in self.marks.drain(found..).rev() {
            if mark.context != context {
                others.push(mark);
                continue;
            }
            is_complete &= mark.is_complete;
            for (path, before) in std::mem::take(&mut mark.before) {
                let now = self.now.get(&path).map(|entry| &entry.stamp);
                let is_others = others.iter().any(|other| other.before.contains_key(&path));
                if is_others
                    || now.is_some_and(|now| may_be_of_another(&before, now, &mark, &known))
                {
                    kept.insert(path.clone());
                }
                wanted.insert(path, before);
            }
        }
        self.marks.extend(others.into_iter().rev());
        wanted.retain(|path, _| !kept.contains(path));
        let Restored { left, entries } =
            restore::restore(&self.workdir, &wanted, &self.now, &mut restored);
        for (path, entry) in entries {
            match entry {
                Some(entry) => drop(self.now.insert(path, entry)),
                None => drop(self.now.remove(&path)),
            }
        }
        if !left.is_empty() {
            // They may be between the two states. That is the work of no cell.
            drop(self.look(false, Closed::Leave));
        }
        kept.extend(left);
        Some(UndoneFiles::new(kept.iter().map(|path| crate::changes::text(path)), is_complete))
    }

    /// Looks at the workspace, and `copies` what has changed. Returns that, with what it was at the last look.
    fn look(&mut self, copies: bool, closed: Closed) -> Vec<(PathBuf, Option<Entry>)> {
        let mut look = Look::at(&self.workdir, closed);
        let until = Instant::now() + MAX_COPY_TIME;
        let was_complete = std::mem::replace(&mut self.is_complete, look.is_complete);
        let mut changed = Vec::new();
        for path in look.gone(&self.workdir, self.now.keys()) {
            let entry = self.now.remove(&path);
            changed.push((path, entry));
        }
        let were_hidden = std::mem::replace(&mut self.hidden, look.hidden);
        if self.now.len() > MAX_ENTRIES {
            // What is not seen now may be there, or not.
            self.now.retain(|path, _| look.found.contains_key(path));
        }
        for (path, stamp) in look.found {
            let known = self.now.get(&path).filter(|entry| entry.stamp == stamp);
            if let Some(known) = known {
                // There may be room for it now.
                if copies && known.content.is_none() {
                    let content = self.copy(&path, &stamp, false, until);
                    self.now.insert(path, Entry { stamp, content });
                }
                continue;
            }
            let content = if copies { self.copy(&path, &stamp, true, until) } else { None };
            let before = self.now.insert(path.clone(), Entry { stamp, content });
            // It may have been there, and was not seen.
            if before.is_some() || was_complete && !is_below(&were_hidden, &path) {
                changed.push((path, before));
            }
        }
        changed
    }

    /// A copy of an entry, if there is time and room for it, or `makes_room` by giving up what was before older cells.
    fn copy(
        &mut self,
        path: &Path,
        stamp: &Stamp,
        makes_room: bool,
        until: Instant,
    ) -> Option<Arc<Content>> {
        let weight = stamp.size + path.as_os_str().len() as u64 + ENTRY_BYTES;
        let has_content = matches!(stamp.kind, FileType::RegularFile | FileType::Symlink);
        let has_room = |versions: &Self| {
            let total = versions.total.load(Ordering::Relaxed);
            total.saturating_add(weight) <= versions.limit && weight <= versions.room
        };
        // Half of the room is for one file at most, or it would leave nothing for the others.
        let can_have_room = has_content && weight <= self.limit / 2 && Instant::now() < until;
        while makes_room
            && can_have_room
            && weight <= self.room
            && !has_room(self)
            && self.marks.len() > 1
        {
            self.marks.pop_front();
        }
        if !can_have_room || !has_room(self) {
            return None;
        }
        let bytes = match stamp.size {
            0 => Vec::new(),
            _ => read(&self.workdir, path, stamp).ok()?,
        };
        self.total.fetch_add(weight, Ordering::Relaxed);
        self.room -= weight;
        Some(Arc::new(Content { bytes, weight, total: Arc::clone(&self.total) }))
    }
}

/// Whether something that is there `now`, and was not the same `before` a cell, may be another's work than the cell's. `known` are inodes,
/// with the times of their changes, that were there under other names.
fn may_be_of_another(
    before: &Option<Entry>,
    now: &Stamp,
    mark: &Mark,
    known: &BTreeSet<(u64, (i64, u64))>,
) -> bool {
    // It was there, and was not seen.
    let is_older = before.is_none()
        && now.kind != FileType::Directory
        && now.changed < mark.began
        && !known.contains(&(now.inode, now.changed));
    // A file that the client writes is new, or takes the place of another.
    let is_new = before.as_ref().is_none_or(|before| before.stamp.inode != now.inode);
    is_older || mark.is_shared && is_new
}

/// The content of a file, or the target of a link, if it is still the one that was seen.
fn read(workdir: &Path, path: &Path, stamp: &Stamp) -> io::Result<Vec<u8>> {
    let changed = || io::Error::from(io::ErrorKind::InvalidData);
    let (folder, name) = parent(workdir, path)?;
    let bytes = if stamp.kind == FileType::Symlink {
        readlinkat(&folder, &name, Vec::new())?.into_bytes()
    } else {
        let file = File::from(openat(&folder, &name, FILE, Mode::empty())?);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(stamp.size).map_err(|_| changed())?)?;
        file.take(stamp.size + 1).read_to_end(&mut bytes)?;
        bytes
    };
    let after = Stamp::of(&statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?);
    if after == *stamp && bytes.len() as u64 == stamp.size { Ok(bytes) } else { Err(changed()) }
}

/// Opens the folder of an entry, without following links. Also returns its name there.
fn parent(workdir: &Path, path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let mut folder = openat(CWD, workdir, FOLDER, Mode::empty())?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    for part in path.parent().into_iter().flat_map(Path::components) {
        folder = openat(&folder, part.as_os_str(), FOLDER, Mode::empty())?;
    }
    Ok((folder, name.to_owned()))
}

/// A path from bytes that the kernel has given.
fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
