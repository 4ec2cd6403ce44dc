//! Unpacks layers from a stranger. Nothing is created outside of their directory, everything in it is allowed in an
//! image, and the limits hold.
//!
//! An input is a stream of frames. Each contains a layer, plain or compressed.

#![no_main]

mod fuzzer;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use std::sync::LazyLock;
use std::time::Duration;

use isolator_fuzz_inputs::frames;
use isolator_fuzz_inputs::scratch::Scratch;
use isolator_pool::engine::store::Limits;
use isolator_pool::fuzzing;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

const LIMITS: Limits = Limits {
    bytes: 1 << 16,
    entries: 64,
    path: 400,
    description: 1 << 12,
    layers: 4,
    patience: Duration::from_secs(1),
};

/// How deep directories can be nested.
const DEEPEST: usize = 130;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|input: &[u8]| {
    let root = SCRATCH.work();
    let (frames, _) = frames::split(input);
    let layers: Vec<Vec<u8>> = frames.into_iter().map(|frame| frame.payload).collect();
    let done = fuzzing::unpack(&root, &layers, LIMITS);
    SCRATCH.check();
    let mut seen = Seen::default();
    seen.look(&root, 0, done.is_ok());
    // The directories of a path are counted only after they are created.
    let most = LIMITS.entries + DEEPEST as u64;
    assert!(seen.things <= most, "there are {} things", seen.things);
    assert!(seen.bytes <= LIMITS.bytes, "there are {} bytes", seen.bytes);
    match done {
        Ok(size) => assert!(!seen.whole || size == seen.bytes),
        Err(error) => drop(error.to_string()),
    }
    fuzzing::clear(&root).expect("whatever is there can be removed");
    SCRATCH.renew();
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzzer::mutate(data, size, max_size, seed, |mutator, stream| mutator.stream(stream))
});

/// The content of a directory.
struct Seen {
    things: u64,
    bytes: u64,
    inodes: HashSet<u64>,
    /// Whether everything could be read: some directories may not be readable for this user.
    whole: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Self { things: 0, bytes: 0, inodes: HashSet::new(), whole: true }
    }
}

impl Seen {
    fn look(&mut self, directory: &Path, depth: usize, is_finished: bool) {
        assert!(depth <= DEEPEST, "{} is too deep", directory.display());
        let Ok(entries) = fs::read_dir(directory) else {
            self.whole = false;
            return;
        };
        for entry in entries {
            let path = entry.expect("a directory can be read").path();
            let Ok(found) = fs::symlink_metadata(&path) else {
                self.whole = false;
                continue;
            };
            self.things += 1;
            if found.is_symlink() {
                let target = fs::read_link(&path).expect("a link can be read");
                assert!(stays_inside(&target, depth), "{} leads out", path.display());
                continue;
            }
            assert!(found.is_dir() || found.is_file(), "{} is something else", path.display());
            assert!(!is_finished || found.mode() & 0o6000 == 0, "{} has rights", path.display());
            if found.is_dir() {
                self.look(&path, depth + 1, is_finished);
            } else if self.inodes.insert(found.ino()) {
                self.bytes += found.len();
            }
        }
    }
}

/// Whether a link stays inside of the root, if it is in a directory that is `depth` levels below the root.
fn stays_inside(target: &Path, mut depth: usize) -> bool {
    target.is_absolute()
        || target.components().all(|component| match component {
            Component::Normal(_) => {
                depth += 1;
                true
            }
            Component::ParentDir if depth == 0 => false,
            Component::ParentDir => {
                depth -= 1;
                true
            }
            _ => true,
        })
}
