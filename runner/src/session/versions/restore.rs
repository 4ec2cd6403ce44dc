//! Puts files back as they were.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, fstat, futimens, mkdirat,
    openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::look::set_mode;
use super::moved::Moved;
use super::{Entry, Stamp, os_string, parent};
use crate::changes::FOLDER;

/// A file that is written in its place.
const IN_PLACE: OFlags =
    OFlags::WRONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Something that is found without opening it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What was put back.
#[derive(Default)]
pub(super) struct Restored {
    /// Those that are not as they were.
    pub(super) left: Vec<PathBuf>,
    /// What is known of the others now.
    pub(super) entries: Vec<(PathBuf, Option<Entry>)>,
}

/// Puts back what is `wanted`. `None` stands for nothing. `now` is what is there.
pub(super) fn restore(
    workdir: &Path,
    wanted: &BTreeMap<PathBuf, Option<Entry>>,
    now: &BTreeMap<PathBuf, Entry>,
    restored: &mut impl FnMut(&Path, &File),
) -> Restored {
    let mut done = Restored::default();
    let mut moved = Moved::find(workdir, wanted, now);
    let mut note = |path: &Path, result: io::Result<Option<Entry>>| match result {
        Ok(entry) => done.entries.push((path.to_owned(), entry)),
        Err(_) => done.left.push(path.to_owned()),
    };
    // What is in a folder comes after it, so the other way round a folder is empty when its turn comes.
    for (path, entry) in wanted.iter().rev() {
        let there = now.get(path).map(|entry| entry.stamp.kind);
        match entry {
            _ if moved.stays.contains(path) => {}
            None if there.is_some() => note(path, remove(workdir, path).map(|()| None)),
            // Another kind of entry has to make room.
            Some(entry) if there.is_some_and(|kind| kind != entry.stamp.kind) => {
                // If that can't be done, it is noted below.
                let _ = remove(workdir, path);
            }
            _ => {}
        }
    }
    for (path, entry) in wanted {
        if moved.stays.contains(path) {
            note(path, Err(io::ErrorKind::Unsupported.into()));
            continue;
        }
        let Some(entry) = entry else { continue };
        if let Some(origin) = moved.origins.get_mut(path) {
            let put = origin.put(workdir, path, now.get(path)).and_then(|there| {
                let is_file = entry.stamp.kind == FileType::RegularFile;
                let same = Entry { stamp: there, content: None };
                if is_file { put(workdir, path, entry, Some(&same), restored) } else { Ok(there) }
            });
            note(path, put.map(|stamp| Some(Entry { stamp, content: None })));
            continue;
        }
        let there = now.get(path).filter(|it| it.stamp.kind == entry.stamp.kind);
        if there.is_some_and(|it| it.stamp == entry.stamp) {
            continue;
        }
        let put = put(workdir, path, entry, there, restored);
        note(path, put.map(|stamp| Some(Entry { stamp, content: entry.content.clone() })));
    }
    // A folder that can't be written to would not let its entries be written.
    for (path, entry) in wanted.iter().rev() {
        if let Some(entry) = entry
            && entry.stamp.kind == FileType::Directory
        {
            let _ = open_folder(workdir, path).and_then(|folder| Ok(fchmod(folder, mode(entry))?));
        }
    }
    done.left.extend(moved.put_rest(workdir));
    done.left.sort_unstable();
    done.left.dedup();
    done
}

fn mode(entry: &Entry) -> Mode {
    Mode::from_raw_mode(entry.stamp.mode & 0o777)
}

fn open_folder(workdir: &Path, path: &Path) -> io::Result<OwnedFd> {
    let (folder, name) = parent(workdir, path)?;
    Ok(openat(&folder, name, FOLDER, Mode::empty())?)
}

/// Removes an entry, but no folder with something in it.
fn remove(workdir: &Path, path: &Path) -> io::Result<()> {
    let (folder, name) = match parent(workdir, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    match unlinkat(&folder, &name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => Ok(unlinkat(&folder, &name, AtFlags::REMOVEDIR)?),
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Makes an entry what it was. `there` is one of the same kind. Returns its new state.
fn put(
    workdir: &Path,
    path: &Path,
    entry: &Entry,
    there: Option<&Entry>,
    restored: &mut impl FnMut(&Path, &File),
) -> io::Result<Stamp> {
    let (folder, name) = parent(workdir, path)?;
    let stamp = || Ok(Stamp::of(&statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?));
    let lost = || io::Error::from(io::ErrorKind::Unsupported);
    match entry.stamp.kind {
        FileType::Directory => {
            if there.is_none() {
                mkdirat(&folder, &name, Mode::RWXU)?;
            }
            // Its own mode comes last.
            let opened = openat(&folder, &name, FOLDER, Mode::empty())?;
            fchmod(opened, mode(entry) | Mode::RWXU)?;
            Ok(Stamp { mode: entry.stamp.mode, ..stamp()? })
        }
        FileType::Symlink => {
            let content = entry.content.as_ref().ok_or_else(lost)?;
            if there.is_some() {
                unlinkat(&folder, &name, AtFlags::empty())?;
            }
            symlinkat(os_string(&content.bytes), &folder, &name)?;
            stamp()
        }
        FileType::RegularFile => {
            let same_inode = there.filter(|it| it.stamp.inode == entry.stamp.inode);
            let is_same = same_inode.is_some_and(|it| {
                (it.stamp.size, it.stamp.modified) == (entry.stamp.size, entry.stamp.modified)
            });
            if is_same && entry.content.is_none() {
                // Only its mode or its number of names has changed. Perhaps the runner may not open it.
                let place = openat(&folder, &name, PLACE, Mode::empty())?;
                if fstat(&place)?.st_ino != entry.stamp.inode {
                    return Err(lost());
                }
                set_mode(&place, mode(entry))?;
                restored(path, &File::from(place));
                return stamp();
            }
            let content = entry.content.as_ref().ok_or_else(lost)?;
            // A process that has it open goes on with it, so it stays the same file if it is.
            let opened = same_inode.and_then(|_| open_to_write(&folder, &name).ok());
            let file = match opened {
                Some(file) if file.metadata()?.is_file() => {
                    file.set_len(0)?;
                    file
                }
                _ => {
                    if there.is_some() {
                        unlinkat(&folder, &name, AtFlags::empty())?;
                    }
                    let flags = IN_PLACE | OFlags::CREATE | OFlags::EXCL;
                    File::from(openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR)?)
                }
            };
            write(&file, &content.bytes)?;
            let (tv_sec, tv_nsec) = entry.stamp.modified;
            let time = Timespec { tv_sec, tv_nsec: tv_nsec.try_into().unwrap_or(0) };
            futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
            fchmod(file.as_fd(), mode(entry))?;
            restored(path, &file);
            stamp()
        }
        // A pipe or a socket is of use only with the processes that have it open.
        _ => Err(lost()),
    }
}

/// Opens a file, also one that may not be written to.
fn open_to_write(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let open = || openat(folder, name, IN_PLACE, Mode::empty());
    let opened = open().or_else(|error| {
        if error != Errno::ACCESS {
            return Err(error);
        }
        set_mode(&openat(folder, name, PLACE, Mode::empty())?, Mode::RUSR | Mode::WUSR)?;
        open()
    });
    Ok(File::from(opened?))
}

/// The unit in which a file can have holes, in bytes.
const BLOCK: usize = 4096;

/// Writes the content of an empty file. Blocks of zeros are not written, so that a sparse file takes no more room than before.
fn write(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.set_len(bytes.len() as u64)?;
    let mut from = 0;
    let is_hole = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
    while let Some(rest) = bytes.get(from..).filter(|rest| !rest.is_empty()) {
        from += rest.chunks(BLOCK).take_while(is_hole).map(<[u8]>::len).sum::<usize>();
        let rest = bytes.get(from..).unwrap_or_default();
        let run =
            rest.chunks(BLOCK).take_while(|block| !is_hole(block)).map(<[u8]>::len).sum::<usize>();
        file.write_all_at(rest.get(..run).unwrap_or_default(), from as u64)?;
        from += run;
    }
    Ok(())
}
