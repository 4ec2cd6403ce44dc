//! Mount points in the root of an image.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod};
use rustix::io::Errno;

use super::error::{IoContext, StoreError};
use super::tree::{self, Missing, Root};

/// Longest chain of links, as in the kernel.
const MAX_LINKS: usize = 40;

/// The mount points that exist already.
#[derive(Debug, Default)]
pub(super) struct Mountpoints {
    directories: HashSet<PathBuf>,
    files: HashSet<PathBuf>,
}

impl Mountpoints {
    /// Creates missing directories and empty files in the root of an image. Links are followed as in a
    /// sandbox. Mount points are remembered, so that the next call costs nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if something else is there already.
    pub(super) fn make(
        &mut self,
        root: &Path,
        digest: &str,
        directories: &[PathBuf],
        files: &[PathBuf],
    ) -> Result<(), StoreError> {
        let known = directories.iter().all(|path| self.directories.contains(path));
        if known && files.iter().all(|path| self.files.contains(path)) {
            return Ok(());
        }
        let root = Root::open(root).at("open", root)?;
        let what = |place: &Path| {
            let place = place.display();
            format!("can't make the mount point {place} in image {digest}")
        };
        for directory in directories {
            root.directory(directory, Missing::Make).context(|| what(directory))?;
        }
        for file in files {
            make_file(&root, file).context(|| what(file))?;
        }
        self.directories.extend(directories.iter().cloned());
        self.files.extend(files.iter().cloned());
        Ok(())
    }
}

fn make_file(root: &Root, path: &Path) -> io::Result<()> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
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
    Err(io::Error::other("something that is not a file is in its place"))
}
