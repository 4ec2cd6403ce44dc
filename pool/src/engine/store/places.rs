//! Places in an image's root over which something is mounted in a sandbox.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod};
use rustix::io::Errno;

use super::error::{Doing, StoreError};
use super::stored::Held;
use super::tree::{self, Missing, Root};
use crate::lock::lock;

/// Links from one file to the next, as many as the kernel follows.
const LINKS: usize = 40;

/// What was made already.
#[derive(Debug, Default)]
pub(super) struct Places {
    directories: HashSet<PathBuf>,
    files: HashSet<PathBuf>,
}

impl Held {
    /// Makes directories and empty files in the root where there are none. Links are followed as in a
    /// sandbox. What was made once is remembered, so that it costs nothing the next time.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if something else is there already.
    pub fn make_places(
        &self,
        directories: &[PathBuf],
        files: &[PathBuf],
    ) -> Result<(), StoreError> {
        let mut made = lock(&self.places);
        let known = directories.iter().all(|path| made.directories.contains(path));
        if known && files.iter().all(|path| made.files.contains(path)) {
            return Ok(());
        }
        let path = self.image.root();
        let root = Root::open(&path).at("open", &path)?;
        let what = |place: &Path| {
            let (digest, place) = (&self.image.digest, place.display());
            format!("can't make a place for {place} in image {digest}")
        };
        for directory in directories {
            root.directory(directory, Missing::Make).doing(|| what(directory))?;
        }
        for file in files {
            make_file(&root, file).doing(|| what(file))?;
        }
        made.directories.extend(directories.iter().cloned());
        made.files.extend(files.iter().cloned());
        Ok(())
    }
}

fn make_file(root: &Root, path: &Path) -> io::Result<()> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let place = root.directory(parent, Missing::Make)?;
        match tree::stat(&place.fd, name)?.map(|found| tree::kind(&found)) {
            Some(FileType::RegularFile) => return Ok(()),
            Some(FileType::Symlink) => path = place.path.join(tree::link(&place.fd, name)?),
            Some(_) => break,
            None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                match tree::open(&place.fd, name, flags) {
                    Ok(file) => return Ok(fchmod(&file, Mode::from_raw_mode(0o644))?),
                    // Another process has made it just now.
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Err(io::Error::other("what is there is not a file"))
}
