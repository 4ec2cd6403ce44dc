//! A directory to unpack into, and a second one next to it, which nothing may touch.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory to work in, and a canary next to it: files that nothing may touch.
#[derive(Debug)]
pub struct Scratch {
    outer: TempDir,
    canary: Vec<State>,
}

/// Metadata that changes if a file is written, linked or renamed, or if its permissions or times change.
type State = (PathBuf, u64, i64, i64, u64);

const WORK: &str = "work";
const CANARY: &str = "canary";

impl Scratch {
    /// Creates the directories. They stay if the fuzzer ends the process.
    ///
    /// # Panics
    ///
    /// If a file operation fails. The same is true for all methods.
    pub fn new() -> Self {
        let outer = tempfile::tempdir().expect("a directory can be made");
        let canary = outer.path().join(CANARY);
        fs::create_dir_all(canary.join("directory")).expect("directories can be made");
        fs::write(canary.join("file"), "a canary").expect("a file can be made");
        fs::create_dir(outer.path().join(WORK)).expect("a directory can be made");
        let canary = states(outer.path());
        Self { outer, canary }
    }

    /// The directory to work in.
    pub fn work(&self) -> PathBuf {
        self.outer.path().join(WORK)
    }

    /// Creates the directory to work in again, after it has been removed.
    pub fn renew(&self) -> PathBuf {
        fs::create_dir(self.work()).expect("a directory can be made");
        self.work()
    }

    /// Checks that nothing outside of the directory to work in has changed.
    pub fn check(&self) {
        let mut names: Vec<_> = fs::read_dir(self.outer.path())
            .expect("the directory can be read")
            .map(|entry| entry.expect("the directory can be read").file_name())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [CANARY, WORK], "something was made outside, or removed");
        assert_eq!(states(self.outer.path()), self.canary, "something outside was touched");
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

fn states(outer: &Path) -> Vec<State> {
    let canary = outer.join(CANARY);
    let mut paths = vec![canary.clone(), canary.join("file"), canary.join("directory")];
    paths.sort_unstable();
    let state = |path: PathBuf| {
        let found = fs::symlink_metadata(&path).expect("the canary is there");
        (path, found.ino(), found.ctime(), found.ctime_nsec(), found.size())
    };
    paths.into_iter().map(state).collect()
}
