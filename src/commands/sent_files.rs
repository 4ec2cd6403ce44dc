//! Files of this machine that go into a workspace.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use isolator_pool::run::workspace::WorkspaceLimits;

use crate::commands::complain;

/// How deep folders are read. A workspace has no deeper ones.
const MAX_DEPTH: usize = 32;

/// The name and the path of a file given as `PATH` or `NAME=PATH`. Both can contain `=`, so the first reading that leads
/// to a file is taken. A path such as `..` has no name at its end.
fn named(argument: &str) -> (Option<String>, PathBuf) {
    let exists = |path: &str| std::fs::symlink_metadata(path).is_ok();
    let mut splits =
        argument.match_indices('=').map(|(at, _)| (&argument[..at], &argument[at + 1..]));
    let first = splits.clone().next();
    let named = match (exists(argument), first) {
        (false, Some(first)) => Some(splits.find(|(_, path)| exists(path)).unwrap_or(first)),
        _ => None,
    };
    if let Some((name, path)) = named {
        return (Some(name.to_owned()), PathBuf::from(path));
    }
    let path = PathBuf::from(argument);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    (name, path)
}

/// Reads a file, or a folder with everything in it, given as `PATH` or `NAME=PATH`. Returns names and contents. Of a path
/// without a name at its end, such as `.`, the content goes to the top of the workspace.
///
/// # Errors
///
/// When something can't be read, or is more than `limits`. The caller says which argument it was.
pub(super) fn read(
    argument: &str,
    limits: WorkspaceLimits,
) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let (name, path) = named(argument);
    let mut reading = Reading { argument, limits, total: 0, files: Vec::new() };
    let name = name.unwrap_or_default();
    if path.is_dir() {
        reading.folder(&name, &path, 0)?;
    } else {
        reading.file(name, &path)?;
    }
    Ok(reading.files)
}

struct Reading<'a> {
    argument: &'a str,
    limits: WorkspaceLimits,
    total: u64,
    files: Vec<(String, Vec<u8>)>,
}

impl Reading<'_> {
    /// An error with the path, unless that is what the caller names already.
    fn with_path<T>(&self, path: &Path, read: io::Result<T>) -> anyhow::Result<T> {
        match path == Path::new(self.argument) {
            true => Ok(read?),
            false => read.with_context(|| path.display().to_string()),
        }
    }

    fn folder(&mut self, name: &str, path: &Path, depth: usize) -> anyhow::Result<()> {
        if depth > MAX_DEPTH {
            bail!("{}: folders are nested more than {MAX_DEPTH} deep", path.display());
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = self.with_path(path, entries)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let file_name = entry.file_name().into_string().map_err(|_| {
                anyhow!("{}: this name is not UTF-8; rename the file", path.display())
            })?;
            let name = if name.is_empty() { file_name } else { format!("{name}/{file_name}") };
            let kind = self.with_path(&path, entry.file_type())?;
            // A link to a folder may lead back to one above it.
            if kind.is_dir() {
                self.folder(&name, &path, depth + 1)?;
            } else if path.is_file() {
                self.file(name, &path)?;
            } else {
                complain(&format!(
                    "isolator: {} is left out: it is neither a file nor a folder",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    fn file(&mut self, name: String, path: &Path) -> anyhow::Result<()> {
        let WorkspaceLimits { files, total } = self.limits;
        if self.files.len() >= files {
            bail!("there are more than {files} files (limits.maxFiles)");
        }
        let mut content = Vec::new();
        let left = total - self.total;
        let read = File::open(path).and_then(|file| file.take(left + 1).read_to_end(&mut content));
        self.with_path(path, read)?;
        if content.len() as u64 > left {
            bail!("the files are larger than {total} bytes together (limits.maxFilesKB)");
        }
        self.total += content.len() as u64;
        self.files.push((name, content));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WorkspaceLimits = WorkspaceLimits { files: 4, total: 10 };

    #[test]
    fn the_path_of_a_file_can_contain_the_sign_between_name_and_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().to_str().unwrap();
        std::fs::create_dir(folder.path().join("year=2024")).unwrap();
        for file in ["year=2024/p.csv", "q.csv"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        for (argument, name, path) in [
            (format!("{at}/year=2024/p.csv"), "p.csv", format!("{at}/year=2024/p.csv")),
            (format!("a.csv={at}/year=2024/p.csv"), "a.csv", format!("{at}/year=2024/p.csv")),
            (format!("month=5/a.csv={at}/q.csv"), "month=5/a.csv", format!("{at}/q.csv")),
            (format!("a.csv={at}/q.csv"), "a.csv", format!("{at}/q.csv")),
            // None of them is there, so the error is of the usual reading.
            ("a=b=c".to_owned(), "a", "b=c".to_owned()),
        ] {
            assert_eq!(
                named(&argument),
                (Some(name.to_owned()), PathBuf::from(path)),
                "{argument}"
            );
        }
    }

    #[test]
    fn a_folder_is_sent_with_everything_in_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("data");
        std::fs::create_dir_all(folder.join("b")).unwrap();
        std::fs::write(folder.join("a"), "1").unwrap();
        std::fs::write(folder.join("b/c"), "22").unwrap();
        std::os::unix::fs::symlink(folder.join("a"), folder.join("link")).unwrap();
        std::os::unix::fs::symlink(&folder, folder.join("loop")).unwrap();
        let folder = folder.to_str().unwrap();
        let names = |argument: &str| {
            let files = read(argument, LIMITS).unwrap();
            files.into_iter().map(|(name, content)| (name, content.len())).collect::<Vec<_>>()
        };
        let named = |folder: &str| {
            [("a", 1), ("b/c", 2), ("link", 1)]
                .map(|(name, size)| (format!("{folder}{name}"), size))
        };
        assert_eq!(names(folder), named("data/"));
        assert_eq!(names(&format!("x/y={folder}")), named("x/y/"));
        assert_eq!(names(&format!("{folder}/b/..")), named(""));
        assert_eq!(names(&format!("{folder}/b/c")), [("c".to_owned(), 2)]);
    }

    #[test]
    fn more_than_may_be_sent_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().to_str().unwrap().to_owned();
        for name in 0..4 {
            std::fs::write(place.path().join(name.to_string()), "1").unwrap();
        }
        assert!(read(&folder, LIMITS).is_ok());
        std::fs::write(place.path().join("3"), "12345678").unwrap();
        let error = read(&folder, LIMITS).unwrap_err().to_string();
        assert!(error.contains("larger than 10 bytes"), "{error}");
        std::fs::write(place.path().join("4"), "").unwrap();
        std::fs::write(place.path().join("3"), "").unwrap();
        let error = read(&folder, LIMITS).unwrap_err().to_string();
        assert!(error.contains("more than 4 files"), "{error}");
        assert!(read("/no/such/file", LIMITS).is_err());
    }
}
