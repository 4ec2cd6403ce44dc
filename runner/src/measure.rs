//! How much of its limits the sandbox uses, for a sample.

use std::collections::HashSet;
use std::path::Path;

use isolator_runner::wire::session::Usage;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, open};

use crate::{cgroup, processes};

/// Folders whose file systems programs can write to, beside that of the workspace. Some are only there in a sandbox with an open
/// root, and some are in the same file system.
const FOLDERS: [&str; 6] = ["/", "/tmp", "/workspace", "/data", "/mnt", "/srv"];

/// What the sandbox uses now.
pub(crate) fn usage(workdir: &Path) -> Usage {
    let (disk, disk_size) = disks(workdir);
    Usage {
        // Not every engine shows a sandbox this counter.
        cpu: cgroup::cpu().unwrap_or_else(processes::cpu),
        memory: cgroup::memory(),
        cache: cgroup::cache(),
        disk,
        disk_size,
    }
}

/// Bytes that are taken in the file systems that programs can write to, and the size of these.
fn disks(workdir: &Path) -> (u64, u64) {
    let mut seen = HashSet::new();
    let (mut taken, mut size) = (0, 0);
    for path in [workdir].into_iter().chain(FOLDERS.map(Path::new)) {
        // A link could lead to any other file system.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = open(path, flags, Mode::empty()) else { continue };
        let (Ok(stat), Ok(disk)) = (fstat(&folder), fstatvfs(&folder)) else { continue };
        if disk.f_flag.contains(StatVfsMountFlags::RDONLY) || !seen.insert(stat.st_dev) {
            continue;
        }
        taken += disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize;
        size += disk.f_blocks * disk.f_frsize;
    }
    (taken, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let (taken, size) = disks(folder.path());
        assert!(0 < taken && taken <= size, "{taken} of {size}");
        let again = disks(Path::new("/tmp"));
        assert_eq!(again.1, size);
    }
}
