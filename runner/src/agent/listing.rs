//! Lists a folder and those below it, in the order of their names, one entry at a time.

use std::fs;
use std::io;
use std::path::PathBuf;

use isolator_runner::wire::agent::{Entry, EntryKind, Failure, MAX_LISTED, MAX_LISTED_DEPTH};

use super::users::Users;
use super::{describe, failure};

/// A list that is being made.
pub(super) struct Listing {
    /// Entries that are still to be listed, the next one last: the path and how deep below it is listed.
    left: Vec<(PathBuf, u32)>,
    listed: usize,
}

impl Listing {
    /// Begins to list a folder.
    pub(super) fn begin(folder: PathBuf, depth: u32) -> io::Result<Self> {
        let mut listing = Self { left: Vec::new(), listed: 0 };
        let depth = depth.clamp(1, MAX_LISTED_DEPTH);
        // More of them than can be listed are an error of the first step.
        listing.add(&folder, depth - 1)?;
        Ok(listing)
    }

    /// Adds the entries of a folder, up to one more than may be listed.
    fn add(&mut self, folder: &PathBuf, depth: u32) -> io::Result<()> {
        let most = (MAX_LISTED + 1).saturating_sub(self.listed + self.left.len());
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder)?.take(most) {
            paths.push(entry?.path());
        }
        paths.sort_unstable_by(|a, b| b.cmp(a));
        self.left.extend(paths.into_iter().map(|path| (path, depth)));
        Ok(())
    }

    /// The next entry; `None` after the last one.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub(super) fn next(&mut self, users: &mut Users) -> Result<Option<Entry>, Failure> {
        while let Some((path, depth)) = self.left.pop() {
            if self.listed + self.left.len() >= MAX_LISTED {
                return Err(Failure::TooManyEntries);
            }
            let entry = match describe::entry(&path, users) {
                Ok(entry) => entry,
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failure(&error)),
            };
            if depth > 0 && entry.kind == EntryKind::Folder {
                match self.add(&path, depth - 1) {
                    Ok(()) => {}
                    // It was removed meanwhile, or its content belongs to another user.
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::NotFound
                                | io::ErrorKind::PermissionDenied
                                | io::ErrorKind::NotADirectory
                        ) => {}
                    Err(error) => return Err(failure(&error)),
                }
            }
            self.listed += 1;
            return Ok(Some(entry));
        }
        Ok(None)
    }
}
