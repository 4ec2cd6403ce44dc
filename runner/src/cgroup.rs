//! The kernel's counters of the whole sandbox, read from inside it, on cgroup v1 and v2.
//!
//! Engines show a container its own cgroup below `/sys/fs/cgroup`, read-only. Where they do not,
//! the counters are absent.

use std::fs;
use std::time::Duration;

/// Events since the sandbox was made.
#[derive(Default)]
pub(crate) struct Counters {
    /// Processes killed because the memory limit was reached.
    pub(crate) oom_kills: u64,
    /// Forks refused because the process limit was reached.
    pub(crate) refused_forks: u64,
}

impl Counters {
    pub(crate) fn read() -> Self {
        let oom = ["/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"];
        let forks = ["/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/pids.events"];
        Self {
            oom_kills: oom.into_iter().find_map(|path| field(path, "oom_kill")).unwrap_or(0),
            refused_forks: forks.into_iter().find_map(|path| field(path, "max")).unwrap_or(0),
        }
    }
}

/// Highest memory use of the sandbox, in bytes.
pub(crate) fn peak_memory() -> Option<u64> {
    number(["/sys/fs/cgroup/memory/memory.max_usage_in_bytes", "/sys/fs/cgroup/memory.peak"])
}

/// Memory use of the sandbox now, in bytes.
pub(crate) fn memory() -> Option<u64> {
    number(["/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory.current"])
}

/// The part of it that the kernel can drop at any time: contents of files on disks.
pub(crate) fn cache() -> u64 {
    let files = ["/sys/fs/cgroup/memory/memory.stat", "/sys/fs/cgroup/memory.stat"];
    let of = |name: &str| files.into_iter().find_map(|path| field(path, name)).unwrap_or(0);
    of("active_file").saturating_add(of("inactive_file"))
}

/// CPU time of the sandbox since it was made.
pub(crate) fn cpu() -> Option<Duration> {
    let of_version_one =
        ["/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage"];
    let of_version_two =
        || field("/sys/fs/cgroup/cpu.stat", "usage_usec").map(Duration::from_micros);
    number(of_version_one).map(Duration::from_nanos).or_else(of_version_two)
}

/// The limit on the memory of the sandbox, in bytes.
pub(crate) fn memory_limit() -> Option<u64> {
    number(["/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"])
}

/// The number in the first of the files that has one.
fn number(paths: [&str; 2]) -> Option<u64> {
    paths.into_iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
}

/// The value of `name` in a file of `name value` lines.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
