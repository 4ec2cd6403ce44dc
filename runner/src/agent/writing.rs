//! A file that is written: under another name until it is complete.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use isolator_runner::wire::agent::Failure;

use super::{failure, opening};

/// The beginnings of the names of files that are not complete: those that are new, and those that replace another. Changes of such
/// files are not reported to clients that watch the folder.
pub(super) const NEW: &str = ".isolator-new-";
pub(super) const REPLACING: &str = ".isolator-replacing-";

/// A file that is written.
pub(super) struct Writing {
    file: File,
    /// Its name for now. It is removed with this, unless the file was finished.
    temporary: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl Writing {
    /// Begins to write the file with this path for a call. It keeps the permissions of the file that it replaces.
    pub(super) fn begin(path: PathBuf, call: u32) -> Result<Self, Failure> {
        let failed = |error: io::Error| failure(&error);
        let replaced = match fs::metadata(&path) {
            Ok(metadata) => {
                opening::regular(&metadata)?;
                Some(metadata.permissions())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        // A link stays, and the file at its end is replaced.
        let end = if replaced.is_some() { fs::canonicalize(&path).map_err(failed)? } else { path };
        let folder = end.parent().ok_or(Failure::System(libc::EISDIR))?;
        fs::create_dir_all(folder).map_err(failed)?;
        let start = if replaced.is_some() { REPLACING } else { NEW };
        let temporary = folder.join(format!("{start}{}-{call}", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)
            .map_err(failed)?;
        let writing = Self { file, temporary, path: end, is_finished: false };
        if let Some(permissions) = replaced {
            let mode = Permissions::from_mode(permissions.mode() & 0o7777);
            writing.file.set_permissions(mode).map_err(failed)?;
        }
        Ok(writing)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Gives the file its name. Returns its path.
    pub(super) fn finish(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.temporary, &self.path)?;
        self.is_finished = true;
        Ok(self.path.clone())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_finished {
            // An error means that a program has removed it.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Whether it is the name of a file that is not complete, and then whether it replaces another.
pub(super) fn replaces(name: &Path) -> Option<bool> {
    let name = name.to_str()?;
    if name.starts_with(NEW) { Some(false) } else { name.starts_with(REPLACING).then_some(true) }
}
