//! A host's configuration on the disk: read, kept a copy of, and replaced in one step or not at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};

/// What the copy's name ends with.
const COPY: &str = "before-isolator";

/// A file as it was read.
#[derive(Debug)]
pub(crate) struct Original {
    /// Where it really is, whatever links lead there.
    path: PathBuf,
    /// What it says; nothing if it is not there.
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
    /// It is a link to nothing.
    #[error("{} is a symbolic link to a file that is not there; make that file first", .0.display())]
    Dangling(PathBuf),
    /// It is a folder or the like.
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    /// It is not text.
    #[error("{} is not UTF-8, as JSON has to be; save it as that first", .0.display())]
    NotText(PathBuf),
    /// It can't be written.
    #[error("{}: {what}: {source}; nothing was changed", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Somebody else writes it at the same time.
    #[error(
        "{} was changed by another program in the meantime, and so left as it is; stop the host and \
         try again",
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
                // Whoever keeps the file elsewhere, under version control perhaps, keeps the link to it.
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

    /// What it says; nothing if it is not there.
    ///
    /// # Errors
    ///
    /// It is not text.
    pub(crate) fn text(&self) -> Result<&str, FileError> {
        let content = self.content.as_deref().unwrap_or_default();
        str::from_utf8(content).map_err(|_| FileError::NotText(self.path.clone()))
    }

    /// Replaces it, in one step, and returns the path of the copy that was made before.
    ///
    /// # Errors
    ///
    /// See [`FileError`]. The file is then as it was.
    pub(crate) fn replace(&self, text: &str) -> Result<Option<PathBuf>, FileError> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        create_folders(folder).map_err(self.failed("its folder can't be made"))?;
        let Some(content) = &self.content else {
            let like = fs::metadata(folder).map_err(self.failed("its folder can't be read"))?;
            self.put(folder, text, &like, false)?;
            return Ok(None);
        };
        let like = fs::metadata(&self.path).map_err(self.failed("it can't be looked at"))?;
        let copy = self.copy(content, &like).map_err(self.failed("no copy of it can be kept"))?;
        match self.put(folder, text, &like, true) {
            Ok(()) => Ok(Some(copy)),
            Err(error) => {
                // A copy of what has not changed is of no use. That it stays does no harm.
                let _ = fs::remove_file(copy);
                Err(error)
            }
        }
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> FileError + '_ {
        move |source| FileError::Write { path: self.path.clone(), what, source }
    }

    /// Keeps a copy beside it, under a name that nothing has.
    fn copy(&self, content: &[u8], like: &Metadata) -> io::Result<PathBuf> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        for number in 1_u64.. {
            let copy = self.path.with_file_name(match number {
                1 => format!("{name}.{COPY}"),
                _ => format!("{name}.{COPY}.{number}"),
            });
            // Such files hold keys; nobody else reads one even for a moment.
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy);
            let mut file = match made {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            let kept = give_away(&file, like)
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

    /// Writes the text beside the file and gives it the file's name.
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
        give_away(new.as_file(), like)
            .and_then(|()| new.write_all(text.as_bytes()))
            .and_then(|()| match replaces {
                true => new.as_file().set_permissions(like.permissions()),
                // A new one is for nobody else: hosts keep keys in these files.
                false => Ok(()),
            })
            .and_then(|()| new.as_file().sync_all())
            .map_err(failed())?;
        if fs::read(&self.path).ok() != self.content {
            return Err(FileError::Changed(self.path.clone()));
        }
        new.persist(&self.path).map_err(|error| failed()(error.error))?;
        // The name has changed already; if that can't be made sure of now, the system will do it later.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Gives a new file to whom the one before belonged, where that is somebody else: root may install for a
/// user, whose host has to be able to write the file afterwards.
fn give_away(file: &File, like: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if own.uid() == like.uid() {
        return Ok(());
    }
    fchown(file, Some(like.uid()), Some(like.gid()))
}

/// Makes the folders that are missing. They belong to whom the one above belongs.
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
