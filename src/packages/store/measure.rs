//! The size of a folder, also while an untrusted tool writes there.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tree::DEEPEST;

/// Deepest nesting in a folder of a tool: its own folders are above those of packages.
const DEEPEST_OF_TOOL: usize = DEEPEST + 8;

/// Most packages whose bytes are counted separately.
const MOST_PARTS: usize = 10_000;

/// The contents of a folder.
#[derive(Debug, Default, Clone)]
pub(crate) struct Usage {
    /// Bytes of files.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: usize,
    /// A package with folders that are deeper than any tool needs, or such a folder. Files below don't count.
    pub too_deep: Option<String>,
    /// Bytes by package, as far as paths name it.
    parts: HashMap<Arc<str>, u64>,
}

impl Usage {
    /// The package with most of the bytes, if paths name one.
    pub(crate) fn largest(&self) -> Option<&str> {
        self.parts.iter().max_by_key(|(_, bytes)| **bytes).map(|(name, _)| &**name)
    }
}

/// The files that a build has brought to the disk since it began. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    /// The folder of the build.
    pub(super) folder: PathBuf,
    pub(super) cache: PathBuf,
    /// The inodes that were in the cache when it began.
    pub(super) before: Arc<HashSet<u64>>,
}

impl Growth {
    /// Measures it. Looks at every file, so it takes a second for some hundred thousand.
    pub(crate) fn measure(&self) -> Usage {
        let mut usage = Usage::default();
        usage.add(&self.folder, |_| true);
        // Linked files are also in the folder, or belong to another set.
        let is_new = |found: &Metadata| !self.before.contains(&found.ino()) && is_unlinked(found);
        usage.add(&self.cache, is_new);
        usage
    }

    /// A folder on the disk that it fills.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Whether a file in a cache is in no set: it has no other link.
pub(super) fn is_unlinked(found: &Metadata) -> bool {
    found.is_dir() || found.nlink() == 1
}

impl Usage {
    /// Adds the contents of a folder, which may be missing, without following links.
    pub(super) fn add(&mut self, root: &Path, mut counts: impl FnMut(&Metadata) -> bool) {
        let mut folders: Vec<(PathBuf, usize, Option<Arc<str>>)> = vec![(root.to_owned(), 0, None)];
        while let Some((folder, depth, part)) = folders.pop() {
            if depth > DEEPEST_OF_TOOL {
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                self.too_deep = Some(part.map_or(name.into_owned(), |part| part.to_string()));
                continue;
            }
            // Files that vanish meanwhile don't count.
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                let (path, is_counted) = (entry.path(), counts(&metadata));
                self.entries += usize::from(is_counted);
                let part = part_of(&path).or_else(|| part.clone());
                if metadata.is_dir() {
                    folders.push((path, depth + 1, part));
                } else if is_counted {
                    self.bytes += metadata.len();
                    if let Some(part) = part
                        && (self.parts.len() < MOST_PARTS || self.parts.contains_key(&part))
                    {
                        *self.parts.entry(part).or_default() += metadata.len();
                    }
                }
            }
        }
    }
}

/// The name of a package whose topmost file or folder this is: in an archive that uv unpacks, or where modules are.
fn part_of(path: &Path) -> Option<Arc<str>> {
    let mut names = path.iter().rev().map(|name| name.to_str().unwrap_or_default());
    let (name, parent, above) = (names.next()?, names.next()?, names.next()?);
    let is_scope = parent.starts_with('@') && above == "node_modules";
    let is_top = ["site-packages", "node_modules"].contains(&parent) && !name.starts_with('@')
        || parent.starts_with(".tmp")
        || above == "archive-v0";
    match (is_scope, is_top) {
        (true, _) => Some(format!("{parent}/{name}").into()),
        (false, true) => Some(name.into()),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_by_their_package_and_depth_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: usize| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        write("uv/archive-v0/x/small/a.py", 1);
        write("uv/archive-v0/.tmpAbc/large/b/c.py", 20);
        write("set/node_modules/@scope/part/node_modules/inner/i.js", 8);
        write("set/node_modules/@scope/part/index.js", 13);
        let measure = |counts: fn(&Metadata) -> bool| {
            let mut usage = Usage::default();
            usage.add(folder.path(), counts);
            usage
        };
        let usage = measure(|_| true);
        assert_eq!((usage.bytes, usage.largest()), (42, Some("large")));
        let of = |name: &str| usage.parts.get(name).copied();
        assert_eq!([of("small"), of("@scope/part"), of("inner")], [Some(1), Some(13), Some(8)]);
        let linked = folder.path().join("linked");
        fs::hard_link(folder.path().join("uv/archive-v0/x/small/a.py"), linked).unwrap();
        assert_eq!(measure(is_unlinked).bytes, 41);
        assert!(usage.too_deep.is_none());
        write(&format!("{}x", "d/".repeat(1000)), 1);
        let usage = measure(|_| true);
        assert!(usage.too_deep.is_some() && usage.entries < 100, "{usage:?}");
    }
}
