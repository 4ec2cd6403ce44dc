//! The limits of a build.
//!
//! They are far above the needs of the language images, because only our builds run with them. They keep a faulty or hostile
//! package from taking the whole machine.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::statvfs;
use tokio::time::{Instant, sleep};

use super::cgroups::Cgroup;
use crate::engine::limits::{ByteSize, LimitKind};
use crate::engine::store;

/// The image for Go takes most: its compiler runs once for each core.
pub(super) const MEMORY: ByteSize = ByteSize::mib(4096);

/// Processes and threads.
pub(super) const PIDS: u32 = 2048;

/// Open files of each process.
pub(super) const OPEN_FILES: u32 = 16_384;

/// The longest file.
pub(super) const FILE: ByteSize = ByteSize::mib(4096);

/// The largest image takes some minutes on two cores, and downloads may be slow.
const TIME: Duration = Duration::from_secs(60 * 60);

/// Free space that a build must leave on the disk of the store, in bytes and in files.
const FREE_BYTES: u64 = 512 << 20;
const FREE_FILES: u64 = 10_000;

/// The disk space of a language image, for messages: the largest has 700 MiB, and its build writes more than that.
pub(super) const NEEDED: &str =
    "a build takes up to 2 GiB there, and is ended when less than 512 MiB are left";

/// How often a build is checked.
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until a build that writes below `directory`, that of the store, has reached a limit, and returns the error.
pub(super) async fn reached(directory: PathBuf, group: Option<Cgroup>) -> io::Error {
    let started = Instant::now();
    loop {
        sleep(INTERVAL).await;
        if let Some(kind) = group.as_ref().and_then(Cgroup::reached) {
            return io::Error::other(of_group(kind));
        }
        if started.elapsed() > TIME {
            let minutes = TIME.as_secs() / 60;
            return io::Error::other(format!(
                "the build was ended because it took more than {minutes} minutes"
            ));
        }
        if let Ok(disk) = statvfs(&directory)
            && (disk.f_bavail * disk.f_frsize < FREE_BYTES
                || disk.f_files > 0 && disk.f_favail < FREE_FILES)
        {
            return io::Error::new(
                io::ErrorKind::StorageFull,
                store::make_room(&directory, NEEDED),
            );
        }
    }
}

/// The message for a limit of the control group.
pub(super) fn of_group(kind: LimitKind) -> String {
    let most = match kind {
        LimitKind::Memory => format!("{} MiB of memory", MEMORY.as_bytes() >> 20),
        LimitKind::Processes => format!("{PIDS} processes"),
        LimitKind::Cpu => "its CPU time".to_owned(),
    };
    format!("the build was ended because it needed more than {most}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_and_disk_are_limited() {
        let limit = async |directory: &str| reached(directory.into(), None).await.to_string();
        let started = Instant::now();
        // No file system of the kernel has room.
        let full = limit("/proc").await;
        assert!(full.contains("make room in /proc, whose disk has 0 bytes free"), "{full}");
        assert!(full.contains("up to 2 GiB"), "{full}");
        assert!(started.elapsed() < TIME);
        // What is not there is not full.
        let late = limit("/nowhere").await;
        assert!(late.contains("more than 60 minutes"), "{late}");
        assert!(started.elapsed() > TIME);
    }
}
