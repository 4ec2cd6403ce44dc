//! The files of a set: listed after they were installed, and again before the set is used.
//!
//! The authors of packages are not trusted. So a set has only files, folders, and links that stay inside.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path};
use std::thread;

use isolator_pool::folders;
use sha2::{Digest as _, Sha256};

use super::error::{AtPath as _, StoreError};
use crate::hex::hex;

/// Most files, folders and links of one set.
pub(crate) const MOST_ENTRIES: usize = 400_000;

/// Most bytes of all paths together. They are in memory several times when a set is listed.
const LONGEST_PATHS: usize = 64 << 20;

/// Longest path below the set's folder, in bytes.
const LONGEST_PATH: usize = 1024;

/// Deepest nesting of folders.
pub(crate) const DEEPEST: usize = 64;

/// Threads that read files at the same time.
const MOST_READERS: usize = 4;

/// The permissions of folders and of files that can be executed.
const EXECUTABLE: u32 = 0o755;

/// The permissions of other files.
const PLAIN: u32 = 0o644;

/// A set's folder that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// It has something that no set may have.
    #[error("{0}")]
    Refused(String),
    /// It can't be read or changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A file, folder or link of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    /// Its path below the set's folder.
    pub path: String,
    pub kind: EntryKind,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Folder,
    File {
        /// Its size in bytes.
        size: u64,
        /// Whether it can be executed.
        executable: bool,
    },
    /// A link with its target, which is relative.
    Link(String),
}

/// All entries of a folder, in the order of paths, without following links.
///
/// # Errors
///
/// When there is something else than files, folders and links that stay inside, or too much.
pub(crate) fn entries(root: &Path) -> Result<Vec<TreeEntry>, TreeError> {
    let mut found = Vec::new();
    let mut bytes_of_paths = 0;
    let mut folders = vec![(String::new(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let place = root.join(&folder);
        for entry in fs::read_dir(&place).at(&place)? {
            let entry = entry.at(&place)?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                return Err(TreeError::Refused(format!(
                    "a file in {folder:?} has a name that is not UTF-8"
                )));
            };
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if path.len() > LONGEST_PATH
                || path.contains(|c: char| c.is_control())
                || depth > DEEPEST
            {
                return Err(TreeError::Refused(format!(
                    "the path {path:?} is too long or deep, or has control characters"
                )));
            }
            if found.len() >= MOST_ENTRIES {
                return Err(TreeError::Refused(format!(
                    "there are more than {MOST_ENTRIES} files"
                )));
            }
            bytes_of_paths += path.len();
            if bytes_of_paths > LONGEST_PATHS {
                return Err(TreeError::Refused(format!(
                    "the names of its files have more than {} MiB",
                    LONGEST_PATHS >> 20
                )));
            }
            let metadata = entry.metadata().at(&place)?;
            let kind = metadata.file_type();
            let kind = if kind.is_dir() {
                folders.push((path.clone(), depth + 1));
                EntryKind::Folder
            } else if kind.is_file() {
                let executable = metadata.permissions().mode() & 0o111 != 0;
                EntryKind::File { size: metadata.len(), executable }
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path()).at(&entry.path())?;
                EntryKind::Link(inside(&path, &target)?)
            } else {
                return Err(TreeError::Refused(format!("{path:?} is neither a file nor a folder")));
            };
            found.push(TreeEntry { path, kind });
        }
    }
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The target of a link, if it is relative and below the set's folder.
fn inside(path: &str, target: &Path) -> Result<String, TreeError> {
    let outside =
        || TreeError::Refused(format!("{path:?} is a link to {target:?}, outside of the set"));
    let text = target.to_str().filter(|text| !text.contains(|c: char| c.is_control()));
    let text = text.ok_or_else(outside)?;
    // The number of folders above the link.
    let mut depth = path.matches('/').count();
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth = depth.checked_sub(1).ok_or_else(outside)?,
            Component::RootDir | Component::Prefix(_) => return Err(outside()),
        }
    }
    Ok(text.to_owned())
}

/// Sets the permissions of all entries, so that the user of a sandbox can read them and gets no rights by them.
pub(crate) fn set_permissions(root: &Path, entries: &[TreeEntry]) -> Result<(), StoreError> {
    let set = |path: &Path, mode| {
        // A file that is linked to the cache has them already.
        let now = fs::symlink_metadata(path).at(path)?;
        if now.mode() & 0o7777 == mode {
            return Ok(());
        }
        fs::set_permissions(path, Permissions::from_mode(mode)).at(path)
    };
    set(root, EXECUTABLE)?;
    for TreeEntry { path, kind } in entries {
        match kind {
            EntryKind::Folder | EntryKind::File { executable: true, .. } => {
                set(&root.join(path), EXECUTABLE)?;
            }
            EntryKind::File { .. } => set(&root.join(path), PLAIN)?,
            EntryKind::Link(_) => {}
        }
    }
    Ok(())
}

/// Bytes of all files.
pub(crate) fn bytes(entries: &[TreeEntry]) -> u64 {
    let size = |entry: &TreeEntry| match entry.kind {
        EntryKind::File { size, .. } => size,
        EntryKind::Folder | EntryKind::Link(_) => 0,
    };
    entries.iter().map(size).sum()
}

/// A line for each entry, with the hash of each file. Two folders have the same text if they have the same content.
pub(crate) fn manifest(root: &Path, entries: &[TreeEntry]) -> Result<String, StoreError> {
    let readers = thread::available_parallelism().map_or(1, usize::from).min(MOST_READERS);
    let part = entries.len().div_ceil(readers).max(1);
    let hashes = thread::scope(|scope| {
        let hash_all = |part: &'_ [TreeEntry]| -> Result<Vec<String>, StoreError> {
            part.iter().map(|entry| hash(root, entry)).collect()
        };
        let parts: Vec<_> =
            entries.chunks(part).map(|part| scope.spawn(move || hash_all(part))).collect();
        let mut hashes = Vec::with_capacity(entries.len());
        for part in parts {
            hashes.extend(part.join().expect("reading files does not panic")?);
        }
        Ok::<_, StoreError>(hashes)
    })?;
    let mut text = String::new();
    for (TreeEntry { path, kind }, hash) in entries.iter().zip(hashes) {
        // Writing to a string can't fail, and no path has a line break.
        let _ = match kind {
            EntryKind::Folder => writeln!(text, "folder {path}"),
            EntryKind::Link(target) => writeln!(text, "link {path}\t{target}"),
            EntryKind::File { executable: true, .. } => writeln!(text, "program {hash} {path}"),
            EntryKind::File { .. } => writeln!(text, "file {hash} {path}"),
        };
    }
    Ok(text)
}

fn hash(root: &Path, entry: &TreeEntry) -> Result<String, StoreError> {
    let EntryKind::File { .. } = entry.kind else { return Ok(String::new()) };
    let path = root.join(&entry.path);
    let read = || -> io::Result<String> {
        let mut file = File::open(&path)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 128 * 1024];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(hex(&hash.finalize())),
                Ok(count) => hash.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    };
    read().at(&path)
}

/// The first difference between two manifests, in words.
pub(crate) fn difference(was: &str, is: &str) -> Option<String> {
    let path = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let path = match words.next() {
            Some("file" | "program") => words.nth(1),
            _ => line.split_once(' ').map(|(_, path)| path),
        };
        path.unwrap_or_default().split('\t').next().unwrap_or_default().to_owned()
    };
    let (mut was, mut is) = (was.lines(), is.lines());
    loop {
        return match (was.next(), is.next()) {
            (None, None) => None,
            (was, is) if was == is => continue,
            (Some(was), Some(is)) if path(was) == path(is) => {
                Some(format!("{} is another", path(is)))
            }
            (Some(was), Some(is)) if path(was) > path(is) => {
                Some(format!("{} was added", path(is)))
            }
            (None, Some(is)) => Some(format!("{} was added", path(is))),
            (Some(was), _) => Some(format!("{} is missing", path(was))),
        };
    }
}

/// Bytes on disk below a folder, without files that `seen` has, by device and inode. The folder may be removed meanwhile.
pub(crate) fn disk_bytes(root: &Path, seen: &mut std::collections::HashSet<(u64, u64)>) -> u64 {
    let mut bytes = 0;
    let looked = folders::look(root, &mut |found| {
        if seen.insert((found.st_dev, found.st_ino)) {
            bytes += found.st_size.cast_unsigned();
        }
    });
    if let Err(error) = looked
        && root.exists()
    {
        tracing::warn!(%error, folder = %root.display(), "not all files were counted");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("lib/a")).unwrap();
        fs::write(folder.path().join("lib/a/x.py"), "x = 1\n").unwrap();
        folder
    }

    fn manifest_of(root: &Path) -> String {
        manifest(root, &entries(root).unwrap()).unwrap()
    }

    #[test]
    fn links_stay_inside() {
        for (target, is_fine) in [
            ("a/x.py", true),
            ("../lib/a", true),
            ("missing", true),
            ("..", true),
            ("../..", false),
            ("a/../../../etc/passwd", false),
            ("/etc/passwd", false),
        ] {
            let folder = folder();
            symlink(target, folder.path().join("lib/link")).unwrap();
            assert_eq!(entries(folder.path()).is_ok(), is_fine, "{target}");
        }
    }

    #[test]
    fn special_files_are_refused() {
        let folder = folder();
        let socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        let error = entries(folder.path()).unwrap_err().to_string();
        assert!(error.contains("neither a file nor a folder"), "{error}");
        drop(socket);
        fs::remove_file(folder.path().join("s")).unwrap();
        fs::write(folder.path().join("a\nb"), "").unwrap();
        assert!(entries(folder.path()).is_err());
    }

    #[test]
    fn sandbox_users_can_read_sets_and_get_no_rights() {
        let folder = folder();
        let path = folder.path().join("lib/a/x.py");
        fs::set_permissions(&path, Permissions::from_mode(0o6711)).unwrap();
        set_permissions(folder.path(), &entries(folder.path()).unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn every_change_is_found_with_its_path() {
        let folder = folder();
        let root = folder.path();
        let was = manifest_of(root);
        assert_eq!(difference(&was, &was), None);
        let changed = |change: &dyn Fn(), expected: &str| {
            change();
            assert_eq!(difference(&was, &manifest_of(root)).as_deref(), Some(expected));
        };
        let file = root.join("lib/a/x.py");
        changed(&|| fs::write(&file, "x = 2\n").unwrap(), "lib/a/x.py is another");
        changed(&|| fs::remove_file(&file).unwrap(), "lib/a/x.py is missing");
        changed(&|| symlink("y", &file).unwrap(), "lib/a/x.py is another");
        fs::remove_file(&file).unwrap();
        fs::write(&file, "x = 1\n").unwrap();
        changed(&|| fs::write(root.join("lib/a/n.py"), "").unwrap(), "lib/a/n.py was added");
        fs::remove_file(root.join("lib/a/n.py")).unwrap();
        changed(&|| fs::write(root.join("z"), "").unwrap(), "z was added");
    }
}
