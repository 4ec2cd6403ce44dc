//! What every root of the store is, wherever it came from.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, RawMode, Timespec, Timestamps, chmodat, fchmod};

use super::error::{Doing, StoreError};
use super::tree::{self, Node, Root};

/// Bits of a mode that an image may set: those that give a program the rights of a file's owner are not
/// among them.
pub(super) const MODE: RawMode = 0o1777;

/// Bits of a mode that give a program the rights of a file's owner or group.
const RIGHTS: RawMode = 0o6000;

/// Looks at everything in a root: it holds files, directories and symbolic links and nothing else, and none
/// gives a program other rights. Finishes each directory after what is in it. Returns the size of the files.
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
                if visit.stat.st_mode & RIGHTS != 0 {
                    fchmod(directory, Mode::from_raw_mode(visit.stat.st_mode & MODE))?;
                }
                finish(directory, visit.stat.st_ino)?;
            }
            (Node::Leaf { parent, name }, FileType::RegularFile) => {
                if visit.stat.st_mode & RIGHTS != 0 {
                    let mode = Mode::from_raw_mode(visit.stat.st_mode & MODE);
                    chmodat(parent, *name, mode, AtFlags::empty())?;
                }
                if visit.stat.st_nlink == 1 || counted.insert(visit.stat.st_ino) {
                    size = size.saturating_add(visit.stat.st_size as u64);
                }
            }
            (Node::Leaf { .. }, kind) => {
                let path = visit.path.display();
                return Err(io::Error::other(format!(
                    "{path} is a {kind:?}, which no image may hold"
                )));
            }
        }
        Ok(())
    });
    walked.doing(|| "can't check what was unpacked".to_owned())?;
    Ok(size)
}

/// A time of an image, which has but one.
pub(super) fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
