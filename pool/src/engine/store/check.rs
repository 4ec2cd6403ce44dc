//! Checks that every root of the store passes, wherever it came from.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, RawMode, Timespec, Timestamps, chmodat, fchmod};

use super::error::{IoContext, StoreError};
use super::tree::{self, Node, Root};

/// Mode bits that an image may set: all but set-user-ID and set-group-ID.
pub(super) const ALLOWED_MODE: RawMode = 0o1777;

/// The set-user-ID and set-group-ID bits.
const SET_ID_BITS: RawMode = 0o6000;

/// Checks that a root contains only files, directories and symbolic links, and removes set-ID bits. Calls
/// `finish` for each directory after its contents. Returns the size of the files.
pub(super) fn check(
    root: &Root,
    finish: &mut dyn FnMut(&OwnedFd, u64) -> io::Result<()>,
) -> Result<u64, StoreError> {
    let mut size: u64 = 0;
    let mut counted = HashSet::new();
    let walked = tree::walk(root, &mut |visit| -> io::Result<()> {
        match (&visit.node, tree::kind(visit.stat)) {
            (Node::Enter, _) | (_, FileType::Symlink) => {}
            (Node::Leave(directory), _) => {
                if visit.stat.st_mode & SET_ID_BITS != 0 {
                    fchmod(directory, Mode::from_raw_mode(visit.stat.st_mode & ALLOWED_MODE))?;
                }
                finish(directory, visit.stat.st_ino)?;
            }
            (Node::Leaf { parent, name }, FileType::RegularFile) => {
                if visit.stat.st_mode & SET_ID_BITS != 0 {
                    let mode = Mode::from_raw_mode(visit.stat.st_mode & ALLOWED_MODE);
                    chmodat(parent, *name, mode, AtFlags::empty())?;
                }
                if visit.stat.st_nlink == 1 || counted.insert(visit.stat.st_ino) {
                    size = size.saturating_add(visit.stat.st_size as u64);
                }
            }
            (Node::Leaf { .. }, kind) => {
                let path = visit.path.display();
                return Err(io::Error::other(format!(
                    "{path} is a {}, which is not allowed in an image",
                    tree::in_words(kind)
                )));
            }
        }
        Ok(())
    });
    walked.context(|| "can't check what was unpacked".to_owned())?;
    Ok(size)
}

/// The access and modification times of a file: images have only one time.
pub(super) fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
