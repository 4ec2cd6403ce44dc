//! Files that are read again when they change.
//!
//! Size and modification time are not enough: `cp -p` and `rsync -t` keep both, and so may a link that is switched to another
//! folder. No user can set the time of the last status change, and device and inode distinguish files behind a link.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

/// Largest file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// After this time, another change has another time stamp, on all file systems. Until then, a file is read whenever it is needed.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// The version of a file, which differs after each change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    /// The version of a file with this metadata.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether the last change is old enough for the next one to have another time stamp.
    fn is_settled(&self) -> bool {
        let changed = u64::try_from(self.changed.0).map(Duration::from_secs).unwrap_or_default();
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
        age.is_ok_and(|age| age > SETTLED_AFTER)
    }
}

/// A file that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(crate) struct ReadError {
    path: PathBuf,
    #[source]
    error: io::Error,
}

impl ReadError {
    /// The error of a file.
    pub(crate) fn new(path: &Path, error: io::Error) -> Self {
        Self { path: path.to_owned(), error }
    }
}

/// The contents of files, in their order.
type Contents = Vec<Vec<u8>>;

/// Files that are used together, and their versions when they were last read.
#[derive(Debug)]
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    /// `None` if they must be read even if they seem unchanged.
    seen: Option<Vec<Version>>,
    /// The digest of the contents, or of the error.
    digest: [u8; 32],
}

impl Files {
    /// Reads the files.
    pub(crate) fn read(paths: Vec<PathBuf>) -> Result<(Self, Contents), ReadError> {
        let mut files = Self { paths, seen: None, digest: [0; 32] };
        let contents = files.read_all()?;
        Ok((files, contents))
    }

    /// Their contents, if these have changed since they were last read. A file that can't be read is reported once.
    pub(crate) fn changed(&mut self) -> Option<Result<Contents, ReadError>> {
        let version = |path| fs::metadata(path).map(|metadata| Version::of(&metadata)).ok();
        let now: Option<Vec<_>> = self.paths.iter().map(version).collect();
        if self.seen.is_some() && now == self.seen {
            return None;
        }
        let before = self.digest;
        let read = self.read_all();
        (self.digest != before).then_some(read)
    }

    fn read_all(&mut self) -> Result<Contents, ReadError> {
        self.seen = None;
        let read: Result<Vec<_>, _> = self.paths.iter().map(|path| read(path)).collect();
        let mut digest = Sha256::new();
        match &read {
            Ok(read) => {
                for (_, content) in read {
                    digest.update((content.len() as u64).to_le_bytes());
                    digest.update(content);
                }
            }
            Err(error) => digest.update(error.to_string()),
        }
        self.digest = digest.finalize().into();
        let (versions, contents): (Vec<_>, _) = read?.into_iter().unzip();
        self.seen = versions.iter().all(Version::is_settled).then_some(versions);
        Ok(contents)
    }
}

/// Reads a file, and the version from before, so that a change meanwhile leads to another read.
fn read(path: &Path) -> Result<(Version, Vec<u8>), ReadError> {
    let failed = |error| ReadError::new(path, error);
    let refused = |message| Err(failed(io::Error::other(message)));
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return refused("it is not a file");
    }
    let file = File::open(path).map_err(failed)?;
    let version = Version::of(&file.metadata().map_err(failed)?);
    let mut content = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > MAX_SIZE {
        return refused("it is larger than 1 MiB");
    }
    Ok((version, content))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with the files of two versions, which differ only in their content and path.
    fn two_versions() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        for (name, content) in [("old", "1"), ("new", "2")] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("file"), content).unwrap();
            let file = File::options().write(true).open(folder.path().join(name).join("file"));
            file.unwrap().set_modified(then).unwrap();
        }
        symlink("old", folder.path().join("now")).unwrap();
        folder
    }

    /// The content that is read after a change, also if the files look settled.
    fn noticed(path: &Path, change: impl FnOnce()) -> Option<String> {
        let (mut files, _) = Files::read(vec![path.to_owned()]).unwrap();
        files.seen = Some(vec![Version::of(&fs::metadata(path).unwrap())]);
        assert!(files.changed().is_none());
        // The kernel's clock of files may tick only every ten milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        change();
        let changed = files.changed()?.unwrap().remove(0);
        assert!(files.changed().is_none());
        Some(String::from_utf8(changed).unwrap())
    }

    #[test]
    fn a_change_that_keeps_size_and_time_is_noticed() {
        let folder = two_versions();
        let (old, new) = (folder.path().join("old/file"), folder.path().join("new/file"));
        let time = fs::metadata(&old).unwrap().modified().unwrap();
        let in_place = || {
            fs::write(&old, "2").unwrap();
            File::options().write(true).open(&old).unwrap().set_modified(time).unwrap();
        };
        assert_eq!(noticed(&old, in_place).as_deref(), Some("2"));
        assert_eq!(fs::metadata(&old).unwrap().modified().unwrap(), time);

        let folder = two_versions();
        let (old, other) = (folder.path().join("old/file"), new);
        let replaced = || fs::rename(&other, &old).unwrap();
        assert_eq!(noticed(&old, replaced).as_deref(), Some("2"));

        let folder = two_versions();
        let linked = folder.path().join("now/file");
        let switched = || {
            symlink("new", folder.path().join("next")).unwrap();
            fs::rename(folder.path().join("next"), folder.path().join("now")).unwrap();
        };
        assert_eq!(noticed(&linked, switched).as_deref(), Some("2"));
        let folder = two_versions();
        assert_eq!(noticed(&folder.path().join("now/file"), || ()), None);
    }

    #[test]
    fn two_changes_at_the_same_time_are_both_noticed() {
        let folder = two_versions();
        let path = folder.path().join("old/file");
        let (mut files, _) = Files::read(vec![path.clone()]).unwrap();
        for content in ["2", "3", "4"] {
            fs::write(&path, content).unwrap();
            assert_eq!(files.changed().unwrap().unwrap(), [content.as_bytes()]);
            assert!(files.changed().is_none());
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_reported_once() {
        let folder = two_versions();
        let path = folder.path().join("old/file");
        let (mut files, _) = Files::read(vec![path.clone()]).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(files.changed().unwrap().is_err() && files.changed().is_none());
        fs::create_dir(&path).unwrap();
        assert!(files.changed().unwrap().unwrap_err().to_string().contains("not a file"));
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "1").unwrap();
        assert_eq!(files.changed().unwrap().unwrap(), [b"1"]);
    }
}
