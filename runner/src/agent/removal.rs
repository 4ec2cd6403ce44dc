//! Removes a folder with everything in it, in steps.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, openat, unlinkat};
use rustix::io::Errno;

use crate::changes::FOLDER;

/// Entries that are removed in one step.
const STEP: usize = 200;

/// Deepest nesting; each folder that is open takes a descriptor.
const MAX_DEPTH: usize = 128;

/// How often a folder is emptied. A program may make files there meanwhile.
const TRIES: u32 = 16;

/// A folder that is being removed.
pub(super) struct Removal {
    /// The folders that are open, the top one first.
    open: Vec<Open>,
}

struct Open {
    /// The folder that has it, and its name there.
    parent: OwnedFd,
    name: CString,
    entries: Dir,
    tries: u32,
}

/// The outcome of a step.
pub(super) enum Step {
    /// Others follow.
    More,
    /// It is gone.
    Done,
}

impl Removal {
    /// Removes a file, or begins to remove a folder. Links are removed, and not followed.
    pub(super) fn begin(path: &Path) -> io::Result<Option<Self>> {
        let name = path.file_name().ok_or(io::Error::from(Errno::BUSY))?;
        let name = CString::new(name.as_encoded_bytes())?;
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("/"));
        let flags = FOLDER.difference(rustix::fs::OFlags::NOFOLLOW);
        let parent = openat(CWD, folder, flags, Mode::empty())?;
        match unlinkat(&parent, &name, AtFlags::empty()) {
            Ok(()) => Ok(None),
            Err(Errno::ISDIR) => Ok(Some(Self { open: vec![Open::new(parent, name)?] })),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes some entries.
    ///
    /// # Errors
    ///
    /// When something can't be removed. The rest stays.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        for _ in 0..STEP {
            let Some(folder) = self.open.last_mut() else { return Ok(Step::Done) };
            let Some(entry) = folder.entries.next() else {
                match unlinkat(&folder.parent, &folder.name, AtFlags::REMOVEDIR) {
                    // It may have been removed by a program.
                    Ok(()) | Err(Errno::NOENT) => drop(self.open.pop()),
                    Err(Errno::NOTEMPTY) if folder.tries < TRIES => {
                        folder.tries += 1;
                        folder.entries.rewind();
                    }
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let here: BorrowedFd<'_> = folder.entries.fd()?;
            let removed = match entry.file_type() {
                FileType::Directory => Err(Errno::ISDIR),
                _ => unlinkat(here, name, AtFlags::empty()),
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => {
                    let (parent, name) = (here.try_clone_to_owned()?, name.to_owned());
                    if self.open.len() >= MAX_DEPTH {
                        return Err(Errno::NAMETOOLONG.into());
                    }
                    self.open.push(Open::new(parent, name)?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Step::More)
    }
}

impl Open {
    fn new(parent: OwnedFd, name: CString) -> io::Result<Self> {
        let folder = openat(&parent, &name, FOLDER, Mode::empty())?;
        let entries = Dir::read_from(folder.as_fd())?;
        Ok(Self { parent, name, entries, tries: 0 })
    }
}
