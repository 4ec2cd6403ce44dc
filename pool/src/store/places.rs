//! Places in an image's root over which something is mounted in a sandbox.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod};

use super::error::{Doing, StoreError};
use super::stored::Held;
use super::tree::{self, Missing, Root};
use crate::lock::lock;

/// Links from one file to the next, as many as the kernel follows.
const LINKS: usize = 40;

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
        if directories.iter().chain(files).all(|path| made.contains(path)) {
            return Ok(());
        }
        let path = self.image.root();
        let root = Root::open(&path).at("open", &path)?;
        let what = |path: &Path| {
            format!("make a place in image {} for", self.image.digest)
                + " "
                + &path.to_string_lossy()
        };
        for directory in directories {
            root.directory(directory, Missing::Make).doing(|| what(directory))?;
        }
        for file in files {
            make_file(&root, file).doing(|| what(file))?;
        }
        made.extend(directories.iter().chain(files).cloned());
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
                let file = tree::open(&place.fd, name, flags)?;
                return Ok(fchmod(&file, Mode::from_raw_mode(0o644))?);
            }
        }
    }
    Err(io::Error::other("what is there is not a file"))
}
