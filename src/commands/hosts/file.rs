//! A host's configuration file: read, backed up, and replaced in one step or not at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};

/// The end of the name of a backup.
const BACKUP: &str = "before-isolator";

/// A file as it was read.
#[derive(Debug)]
pub(crate) struct Original {
    /// Its path, with symbolic links resolved.
    path: PathBuf,
    /// Its text; `None` if it is not there.
    content: Option<Vec<u8>>,
}

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It can't be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is a link to a file that does not exist.
    #[error("{} is a symbolic link to a file that does not exist; create that file first", .0.display())]
    Dangling(PathBuf),
    /// It is a folder or something else that is no file.
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    /// It is not text.
    #[error("{} is not UTF-8, which its host requires; save it as UTF-8 first", .0.display())]
    NotText(PathBuf),
    /// It can't be written.
    #[error("{}: {what}: {source}; nothing was changed", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The attempt.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another process writes it at the same time.
    #[error(
        "another program changed {} at the same time, so it was left as it is; stop the host and try \
         again",
        .0.display()
    )]
    Changed(PathBuf),
}

impl Original {
    /// Reads the file, if it is there.
    ///
    /// # Errors
    ///
    /// See [`FileError`].
    pub(crate) fn read(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        match fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => Err(FileError::NotAFile(path.to_owned())),
            Ok(_) => {
                // Some users link to a file elsewhere, perhaps under version control. The link stays.
                let path = fs::canonicalize(path).map_err(failed)?;
                let content = Some(fs::read(&path).map_err(failed)?);
                Ok(Self { path, content })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(FileError::Dangling(path.to_owned()));
                }
                Ok(Self { path: path.to_owned(), content: None })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether it is there.
    pub(crate) fn exists(&self) -> bool {
        self.content.is_some()
    }

    /// Whether its folder is there.
    pub(crate) fn has_folder(&self) -> bool {
        self.path.parent().is_some_and(Path::is_dir)
    }

    /// Its text; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// It is not text.
    pub(crate) fn text(&self) -> Result<&str, FileError> {
        let content = self.content.as_deref().unwrap_or_default();
        str::from_utf8(content).map_err(|_| FileError::NotText(self.path.clone()))
    }

    /// Replaces it in one step, and returns the path of the backup.
    ///
    /// # Errors
    ///
    /// See [`FileError`]. The file is then as it was.
    pub(crate) fn replace(&self, text: &str) -> Result<Option<PathBuf>, FileError> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        create_folders(folder).map_err(self.failed("its folder can't be created"))?;
        let Some(content) = &self.content else {
            let like = fs::metadata(folder).map_err(self.failed("its folder can't be read"))?;
            self.put(folder, text, &like, false)?;
            return Ok(None);
        };
        let like = fs::metadata(&self.path).map_err(self.failed("its metadata can't be read"))?;
        let copy =
            self.copy(content, &like).map_err(self.failed("no backup of it can be written"))?;
        match self.put(folder, text, &like, true) {
            Ok(()) => Ok(Some(copy)),
            Err(error) => {
                // Nothing changed, so the backup is useless. If it stays, it does no harm.
                let _ = fs::remove_file(copy);
                Err(error)
            }
        }
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> FileError + '_ {
        move |source| FileError::Write { path: self.path.clone(), what, source }
    }

    /// Writes a backup next to it, under a new name.
    fn copy(&self, content: &[u8], like: &Metadata) -> io::Result<PathBuf> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        for number in 1_u64.. {
            let copy = self.path.with_file_name(match number {
                1 => format!("{name}.{BACKUP}"),
                _ => format!("{name}.{BACKUP}.{number}"),
            });
            // Such files hold keys; no other user must be able to read one, even for a moment.
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy);
            let mut file = match made {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            let kept = copy_owner(&file, like)
                .and_then(|()| file.write_all(content))
                .and_then(|()| file.set_permissions(like.permissions()))
                .and_then(|()| file.sync_all());
            if kept.is_err() {
                let _ = fs::remove_file(&copy);
            }
            return kept.map(|()| copy);
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Writes the text to a temporary file and renames that.
    fn put(
        &self,
        folder: &Path,
        text: &str,
        like: &Metadata,
        replaces: bool,
    ) -> Result<(), FileError> {
        let failed = || self.failed("it can't be written");
        let mut new = tempfile::Builder::new()
            .prefix(".isolator-")
            .suffix(".tmp")
            .tempfile_in(folder)
            .map_err(failed())?;
        copy_owner(new.as_file(), like)
            .and_then(|()| new.write_all(text.as_bytes()))
            .and_then(|()| match replaces {
                true => new.as_file().set_permissions(like.permissions()),
                // Only the owner can read a new file: hosts keep keys in it.
                false => Ok(()),
            })
            .and_then(|()| new.as_file().sync_all())
            .map_err(failed())?;
        if fs::read(&self.path).ok() != self.content {
            return Err(FileError::Changed(self.path.clone()));
        }
        new.persist(&self.path).map_err(|error| failed()(error.error))?;
        // The rename is done already; if this sync fails, the system writes it later.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Gives a new file the owner of the old one: root may install for a user, whose host must be able to write the
/// file later.
fn copy_owner(file: &File, like: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if own.uid() == like.uid() {
        return Ok(());
    }
    fchown(file, Some(like.uid()), Some(like.gid()))
}

/// Creates missing folders. They get the owner of their parent.
fn create_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().ok_or(ErrorKind::NotFound)?;
    create_folders(above)?;
    fs::create_dir(folder)?;
    let (own, like) = (fs::metadata(folder)?, fs::metadata(above)?);
    if own.uid() == like.uid() {
        return Ok(());
    }
    chown(folder, Some(like.uid()), Some(like.gid()))
}
