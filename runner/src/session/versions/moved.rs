//! Files without copies that have other names now. Each is the only one of its content, so it is moved back, and never removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, linkat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{Entry, Stamp, parent};
use crate::changes::FOLDER;

/// Most names that are tried for a file that waits for its place.
const MAX_NAMES: usize = 100;

/// Where files are that have no copies.
#[derive(Default)]
pub(super) struct Moved {
    /// How those come to their names that are not there.
    pub(super) origins: BTreeMap<PathBuf, Origin>,
    /// Entries that are not to be touched: what is left of a file is there.
    pub(super) stays: BTreeSet<PathBuf>,
}

/// How a file comes to its name.
pub(super) enum Origin {
    /// It waits in the workspace under a name that nothing else has.
    Waiting { name: OsString, from: PathBuf, is_placed: bool },
    /// It is there under another name, which it keeps.
    Link(PathBuf),
}

/// That of which a file is known again: one that was renamed has the same.
fn identity(stamp: &Stamp) -> (u64, u64, (i64, u64)) {
    (stamp.inode, stamp.size, stamp.modified)
}

impl Moved {
    /// Finds the files that are `wanted` and have no copies, and moves those out of the way that have other names now.
    pub(super) fn find(
        workdir: &Path,
        wanted: &BTreeMap<PathBuf, Option<Entry>>,
        now: &BTreeMap<PathBuf, Entry>,
    ) -> Self {
        let mut moved = Self::default();
        let mut inodes = BTreeSet::new();
        let mut homes: BTreeMap<_, BTreeSet<&PathBuf>> = BTreeMap::new();
        for (path, entry) in wanted {
            if let Some(entry) = entry
                && entry.content.is_none()
                && entry.stamp.kind != FileType::Directory
            {
                inodes.insert(entry.stamp.inode);
                homes.entry(identity(&entry.stamp)).or_default().insert(path);
            }
        }
        let mut found: BTreeMap<_, BTreeSet<&PathBuf>> = BTreeMap::new();
        for (path, entry) in now {
            let stamp = &entry.stamp;
            if stamp.kind == FileType::Directory || !inodes.contains(&stamp.inode) {
                continue;
            }
            let was_here = match wanted.get(path) {
                Some(Some(before)) => before.stamp.inode == stamp.inode,
                Some(None) => false,
                None => true,
            };
            if homes.contains_key(&identity(stamp)) {
                found.entry(identity(stamp)).or_default().insert(path);
            } else if !was_here {
                // It was changed, too.
                moved.stays.insert(path.clone());
            }
        }
        for (identity, homes) in homes {
            let places = found.remove(&identity).unwrap_or_default();
            let missing: Vec<_> = homes.difference(&places).copied().collect();
            let Some((first, others)) = missing.split_first() else { continue };
            let keeps = |place: &&&PathBuf| homes.contains(*place) || !wanted.contains_key(**place);
            if let Some(place) = places.iter().find(keeps) {
                for home in missing {
                    moved.origins.insert(home.clone(), Origin::Link(place.to_path_buf()));
                }
                continue;
            }
            let Some(place) = places.first() else { continue };
            if let Ok(name) = make_wait(workdir, place, identity.0) {
                let from = place.to_path_buf();
                let origin = Origin::Waiting { name, from, is_placed: false };
                moved.origins.insert(first.to_path_buf(), origin);
                for home in others {
                    moved.origins.insert(home.to_path_buf(), Origin::Link(first.to_path_buf()));
                }
            } else {
                moved.stays.extend(places.into_iter().cloned());
            }
        }
        moved
    }

    /// Moves the files back that have not come to their names. Returns where they are.
    pub(super) fn put_rest(self, workdir: &Path) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for origin in self.origins.into_values() {
            if let Origin::Waiting { name, from, is_placed: false } = origin {
                let is_back = openat(CWD, workdir, FOLDER, Mode::empty()).is_ok_and(|top| {
                    parent(workdir, &from).is_ok_and(|(folder, last)| {
                        renameat_with(top, &name, folder, last, RenameFlags::NOREPLACE).is_ok()
                    })
                });
                left.push(if is_back { from } else { name.into() });
            }
        }
        left
    }
}

impl Origin {
    /// Gives a file its name. `there` is what is known to have it now. Returns the state of the file.
    pub(super) fn put(
        &mut self,
        workdir: &Path,
        path: &Path,
        there: Option<&Entry>,
    ) -> io::Result<Stamp> {
        let (folder, last) = parent(workdir, path)?;
        match self {
            Self::Waiting { name, is_placed, .. } => {
                // A file that was not seen may have the name.
                let flags = there.map_or(RenameFlags::NOREPLACE, |_| RenameFlags::empty());
                let top = openat(CWD, workdir, FOLDER, Mode::empty())?;
                renameat_with(top, &*name, &folder, &last, flags)?;
                *is_placed = true;
            }
            Self::Link(place) => {
                if there.is_some() {
                    match unlinkat(&folder, &last, AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                let (from, name) = parent(workdir, place)?;
                linkat(from, name, &folder, &last, AtFlags::empty())?;
            }
        }
        Ok(Stamp::of(&statat(&folder, &last, AtFlags::SYMLINK_NOFOLLOW)?))
    }
}

/// Gives a file a name in the workspace that nothing else has. Returns it.
fn make_wait(workdir: &Path, path: &Path, inode: u64) -> io::Result<OsString> {
    let (folder, last) = parent(workdir, path)?;
    if statat(&folder, &last, AtFlags::SYMLINK_NOFOLLOW)?.st_ino != inode {
        return Err(io::ErrorKind::NotFound.into());
    }
    let top = openat(CWD, workdir, FOLDER, Mode::empty())?;
    for number in 0..MAX_NAMES {
        let name = OsString::from(format!(".undo-{number}"));
        match renameat_with(&folder, &last, &top, &name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
