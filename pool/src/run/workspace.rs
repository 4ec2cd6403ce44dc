//! The workspace: a request's files, checked and packed as a tar.
//!
//! Names come from outside. The rules are those of the sandbox's file system, applied before
//! anything is sent, so that a bad name is the caller's clear error and never the sandbox's.

use std::collections::BTreeMap;
use std::ops::Range;

use tar::{EntryType, Header};

use crate::quote::quoted;

/// Longest name of one file or directory, in bytes: the limit of Linux file systems.
const MAX_COMPONENT: usize = 255;

/// Longest path below the workspace, in bytes. Linux takes 4096 from the root; real paths are shorter
/// than this.
const MAX_PATH: usize = 1024;

/// Deepest nesting of folders. Each level of each file costs time to unpack.
const MAX_DEPTH: usize = 32;

/// The beginnings of programs: scripts that name their interpreter, and executables.
const PROGRAMS: [&[u8]; 2] = [b"#!", b"\x7fELF"];

/// The contents in a tar begin at multiples of this, in bytes.
const BLOCK: usize = 512;

/// The limits of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Number of files, the entrypoint included.
    pub files: usize,
    /// Contents of all files together, in bytes.
    pub total: u64,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The name has no characters.
    #[error("the file name is empty")]
    Empty,
    /// The name starts at the root.
    #[error("{} is absolute; file names are relative to the working directory", quoted(.0))]
    Absolute(String),
    /// The name contains `..`.
    #[error("{} contains \"..\"; file names stay inside the workspace", quoted(.0))]
    ParentDir(String),
    /// The name holds a NUL character.
    #[error("{} contains a NUL character", quoted(.0))]
    Nul(String),
    /// The name is that of a directory.
    #[error("{} names a directory, not a file", quoted(.0))]
    Directory(String),
    /// A part of the name, or all of it, is too long.
    #[error("{} is too long: a part may have {MAX_COMPONENT} bytes, and the whole path {MAX_PATH}", quoted(.0))]
    TooLong(String),
    /// The name is nested in too many folders.
    #[error("{} is nested more than {MAX_DEPTH} folders deep", quoted(.0))]
    TooDeep(String),
    /// Two files have the same name.
    #[error("{} is given twice", quoted(.0))]
    Duplicate(String),
    /// A file would have to be a directory too.
    #[error("{} is a file, so {} can't be inside it", quoted(.file), quoted(.beneath))]
    BeneathFile {
        /// The file.
        file: String,
        /// The name that makes it a directory.
        beneath: String,
    },
    /// There are more files than allowed.
    #[error("there are more than {0} files")]
    TooMany(usize),
    /// The contents are larger than allowed.
    #[error("the files are larger than {0} bytes together")]
    TooLarge(u64),
}

/// Files on their way into a workspace.
#[derive(Debug)]
pub struct WorkspaceBuilder {
    limits: WorkspaceLimits,
    files: BTreeMap<String, Vec<u8>>,
    total: u64,
}

impl WorkspaceBuilder {
    /// An empty workspace.
    pub fn new(limits: WorkspaceLimits) -> Self {
        Self { limits, files: BTreeMap::new(), total: 0 }
    }

    /// Adds a file and returns its normalised name.
    ///
    /// # Errors
    ///
    /// See [`FileError`]; the workspace is as it was before.
    pub fn add(&mut self, name: &str, content: Vec<u8>) -> Result<String, FileError> {
        let path = normalise(name)?;
        if self.files.contains_key(&path) {
            return Err(FileError::Duplicate(path));
        }
        self.refuse_file_as_directory(&path)?;
        if self.files.len() >= self.limits.files {
            return Err(FileError::TooMany(self.limits.files));
        }
        let total = self.total + content.len() as u64;
        if total > self.limits.total {
            return Err(FileError::TooLarge(self.limits.total));
        }
        self.total = total;
        self.files.insert(path.clone(), content);
        Ok(path)
    }

    fn refuse_file_as_directory(&self, path: &str) -> Result<(), FileError> {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        for directory in above {
            if self.files.contains_key(directory) {
                return Err(FileError::BeneathFile {
                    file: directory.to_owned(),
                    beneath: path.to_owned(),
                });
            }
        }
        let prefix = format!("{path}/");
        match self.files.range(prefix.clone()..).next() {
            Some((beneath, _)) if beneath.starts_with(&prefix) => {
                Err(FileError::BeneathFile { file: path.to_owned(), beneath: beneath.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Packs the files.
    pub fn build(self) -> Workspace {
        let room = self.files.values().map(|content| content.len() + 1024).sum::<usize>() + 1024;
        let mut archive = tar::Builder::new(Vec::with_capacity(room));
        let mut files = Vec::with_capacity(self.files.len());
        for (path, content) in self.files {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            let is_program = PROGRAMS.iter().any(|begin| content.starts_with(begin));
            header.set_mode(if is_program { 0o755 } else { 0o644 });
            header.set_size(content.len() as u64);
            archive
                .append_data(&mut header, &path, content.as_slice())
                .expect("a checked name and a vector always fit a tar");
            // A tar pads the content of a file to whole blocks.
            let end =
                archive.get_ref().len() - content.len().next_multiple_of(BLOCK) + content.len();
            files.push((path, end - content.len()..end));
        }
        let tar = archive.into_inner().expect("writing to a vector can't fail");
        Workspace { tar, files }
    }
}

/// A packed workspace.
#[derive(Debug, Clone)]
pub struct Workspace {
    tar: Vec<u8>,
    /// The files' paths, and where in the tar their contents are.
    files: Vec<(String, Range<usize>)>,
}

impl Workspace {
    /// The tar's bytes.
    pub fn tar(&self) -> &[u8] {
        &self.tar
    }

    /// The files' paths below the workspace.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|(path, _)| path.clone()).collect()
    }

    /// The files: their paths below the workspace, and their contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, content)| (path.as_str(), &self.tar[content.clone()]))
    }
}

/// A name without the working directory, which people may write before it. A name that leads elsewhere is as it was.
pub fn below<'n>(workdir: &str, name: &'n str) -> &'n str {
    let below = name.strip_prefix(workdir).filter(|rest| rest.starts_with('/'));
    below.map_or(name, |rest| rest.trim_start_matches('/'))
}

/// The name without `.` and doubled slashes, so that two names of one file are equal.
fn normalise(name: &str) -> Result<String, FileError> {
    if name.is_empty() {
        return Err(FileError::Empty);
    }
    if name.contains('\0') {
        return Err(FileError::Nul(name.to_owned()));
    }
    if name.starts_with('/') {
        return Err(FileError::Absolute(name.to_owned()));
    }
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(FileError::ParentDir(name.to_owned())),
            part if part.len() > MAX_COMPONENT => return Err(FileError::TooLong(name.to_owned())),
            part => parts.push(part),
        }
    }
    if parts.is_empty() || name.ends_with('/') || name.ends_with("/.") {
        return Err(FileError::Directory(name.to_owned()));
    }
    if parts.len() > MAX_DEPTH {
        return Err(FileError::TooDeep(name.to_owned()));
    }
    let path = parts.join("/");
    if path.len() > MAX_PATH {
        return Err(FileError::TooLong(name.to_owned()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    fn builder() -> WorkspaceBuilder {
        WorkspaceBuilder::new(WorkspaceLimits { files: 4, total: 100 })
    }

    fn unpack(workspace: &Workspace) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(workspace.tar());
        archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let path = entry.path().unwrap().to_str().unwrap().to_owned();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                (path, content)
            })
            .collect()
    }

    #[test]
    fn bad_names_are_refused_with_their_reasons() {
        let long = "x".repeat(256);
        let long_path = format!("{0}/{0}/{0}/{0}/{0}/f", "d".repeat(250));
        let deep = "d/".repeat(40) + "f";
        type Expected = fn(&FileError) -> bool;
        let cases: [(&str, Expected); 12] = [
            ("", |e| matches!(e, FileError::Empty)),
            ("/etc/passwd", |e| matches!(e, FileError::Absolute(_))),
            ("../x", |e| matches!(e, FileError::ParentDir(_))),
            ("a/../b", |e| matches!(e, FileError::ParentDir(_))),
            ("a\0b", |e| matches!(e, FileError::Nul(_))),
            (".", |e| matches!(e, FileError::Directory(_))),
            ("a/", |e| matches!(e, FileError::Directory(_))),
            ("a/.", |e| matches!(e, FileError::Directory(_))),
            ("./", |e| matches!(e, FileError::Directory(_))),
            (&long, |e| matches!(e, FileError::TooLong(_))),
            (&long_path, |e| matches!(e, FileError::TooLong(_))),
            (&deep, |e| matches!(e, FileError::TooDeep(_))),
        ];
        for (name, expected) in cases {
            let error = builder().add(name, vec![]).unwrap_err();
            assert!(expected(&error), "{name:?} gave {error:?}");
        }
    }

    #[test]
    fn two_names_of_one_file_are_a_duplicate() {
        for other in ["a/b", "./a/b", "a//b", "a/./b"] {
            let mut workspace = builder();
            workspace.add("a/b", vec![]).unwrap();
            assert_eq!(workspace.add(other, vec![]), Err(FileError::Duplicate("a/b".into())));
        }
    }

    #[test]
    fn a_file_is_not_a_directory_in_either_order() {
        let mut workspace = builder();
        workspace.add("a", vec![]).unwrap();
        assert!(matches!(workspace.add("a/b/c", vec![]), Err(FileError::BeneathFile { .. })));
        let mut workspace = builder();
        workspace.add("a/b/c", vec![]).unwrap();
        assert!(matches!(workspace.add("a", vec![]), Err(FileError::BeneathFile { .. })));
        assert!(workspace.add("a.b", vec![]).is_ok());
    }

    #[test]
    fn limits_count_all_files() {
        let mut workspace = builder();
        workspace.add("a", vec![0; 60]).unwrap();
        assert_eq!(workspace.add("b", vec![0; 41]), Err(FileError::TooLarge(100)));
        for name in ["c", "d", "e"] {
            workspace.add(name, vec![0; 10]).unwrap();
        }
        assert_eq!(workspace.add("f", vec![]), Err(FileError::TooMany(4)));
    }

    #[test]
    fn contents_and_long_names_survive_the_tar() {
        let name = format!("{}/{}.bin", "d".repeat(200), "ü".repeat(100));
        let mut workspace = builder();
        workspace.add(&name, vec![0, 255, 10]).unwrap();
        workspace.add("./b", b"x".to_vec()).unwrap();
        let files = unpack(&workspace.build());
        assert_eq!(files[&name], [0, 255, 10]);
        assert_eq!(files["b"], b"x");
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_stays_inside_and_comes_out_again(
            names in prop::collection::vec("[a.b/\\\\ü\\n ]{0,12}", 1..4),
        ) {
            let mut workspace = builder();
            let mut accepted = BTreeMap::new();
            for name in names {
                if let Ok(path) = workspace.add(&name, name.clone().into_bytes()) {
                    prop_assert!(!path.starts_with('/'));
                    prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
                    accepted.insert(path, name.into_bytes());
                }
            }
            let workspace = workspace.build();
            let files = workspace.files().map(|(path, file)| (path.to_owned(), file.to_owned()));
            prop_assert_eq!(&files.collect::<BTreeMap<_, _>>(), &accepted);
            prop_assert_eq!(unpack(&workspace), accepted);
        }
    }
}
