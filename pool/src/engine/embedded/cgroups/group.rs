//! The control groups of one sandbox: limited, frozen, killed and removed, on version 1 and 2.
//!
//! A launcher makes a sandbox's groups and puts its first process into them. Everything after that
//! is a few writes to files, which the server does itself, because every warm start has to wait for thawing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::hierarchies::{Hierarchies, or_if_gone, remove_directory};
use super::plan::{GroupLimits, GroupPlan};
use super::version::Version;
use crate::engine::SandboxState;
use crate::engine::embedded::at;
use crate::engine::limits::{LimitKind, Resources};

/// How often the state of the freezer is checked, and how often freezing is tried. A group in which
/// processes are being forked may need a second attempt, as the kernel documents for version 1.
const FREEZE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const FREEZE_CHECKS: u32 = 50;
const FREEZE_ATTEMPTS: u32 = 5;

/// How often, and at what interval, to try to remove a group whose processes have just been killed.
const REMOVE_ATTEMPTS: u32 = 200;
const REMOVE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The period of CPU limits: the kernel's default.
pub(crate) const CPU_PERIOD: Duration = Duration::from_millis(100);

/// The groups of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    hierarchies: Hierarchies,
    /// Path below each mount.
    path: PathBuf,
}

impl Cgroup {
    /// The groups of a sandbox of an instance.
    pub(crate) fn new(hierarchies: &Hierarchies, instance: &str, name: &str) -> Self {
        let path = hierarchies.root().join(instance).join(name);
        Self { hierarchies: hierarchies.clone(), path }
    }

    /// The plan by which a launcher makes them.
    pub(crate) fn plan(&self, limits: &GroupLimits) -> GroupPlan {
        GroupPlan::new(&self.hierarchies, self.path.clone(), limits)
    }

    /// Makes the groups that limit memory and processes, with their parents, for processes outside of sandboxes.
    pub(crate) fn make(&self) -> io::Result<()> {
        self.hierarchies.make_limiting(&self.path)
    }

    /// Moves a process into all groups.
    pub(crate) fn take_in(&self, pid: Pid) -> io::Result<()> {
        let number = pid.as_raw_nonzero().to_string();
        let join =
            |group: &Path| or_if_gone(fs::write(group.join("cgroup.procs"), &number)).map(|_| ());
        if let (Some(devices), Some(instance)) = (&self.hierarchies.devices, self.path.parent()) {
            join(&devices.join(instance))?;
        }
        self.hierarchies.each(&self.path, join)
    }

    fn file(&self, controller: &str, name: &str) -> io::Result<PathBuf> {
        Ok(self.hierarchies.mount(controller)?.join(&self.path).join(name))
    }

    fn write(&self, controller: &str, name: &str, value: &str) -> io::Result<()> {
        let file = self.file(controller, name)?;
        fs::write(&file, value).map_err(at(&file))
    }

    fn read(&self, controller: &str, name: &str) -> io::Result<String> {
        fs::read_to_string(self.file(controller, name)?)
    }

    /// Freezes every process, and waits until all are frozen.
    pub(crate) async fn freeze(&self) -> io::Result<()> {
        for _ in 0..FREEZE_ATTEMPTS {
            match self.hierarchies.freezer() {
                (Version::One, name) => self.write(name, "freezer.state", "FROZEN")?,
                (Version::Two, name) => self.write(name, "cgroup.freeze", "1")?,
            }
            for _ in 0..FREEZE_CHECKS {
                if self.is_frozen()? {
                    return Ok(());
                }
                tokio::time::sleep(FREEZE_CHECK_INTERVAL).await;
            }
            self.thaw()?;
        }
        Err(io::Error::other("its processes could not be frozen"))
    }

    /// Thaws every process.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        match self.hierarchies.freezer() {
            (Version::One, name) => self.write(name, "freezer.state", "THAWED"),
            (Version::Two, name) => self.write(name, "cgroup.freeze", "0"),
        }
    }

    /// Whether every process is frozen.
    pub(crate) fn is_frozen(&self) -> io::Result<bool> {
        Ok(match self.hierarchies.freezer() {
            (Version::One, name) => self.read(name, "freezer.state")?.trim() == "FROZEN",
            (Version::Two, name) => {
                self.read(name, "cgroup.events")?.lines().any(|line| line == "frozen 1")
            }
        })
    }

    /// The state of a sandbox of whose process 1 there is no descriptor.
    pub(crate) fn state(&self) -> io::Result<SandboxState> {
        if self.pids()?.is_empty() {
            return Ok(SandboxState::Stopped);
        }
        // It may just be removed, or not have joined its freezer yet.
        let is_frozen = or_if_gone(self.is_frozen())?.unwrap_or_default();
        Ok(if is_frozen { SandboxState::Paused } else { SandboxState::Running })
    }

    /// Changes the limits of the controllers for which `has` returns true.
    pub(crate) fn limit(
        &self,
        resources: Resources,
        processes: u32,
        has: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let memory = resources.memory.as_bytes().to_string();
        let quota = quota(resources).to_string();
        if has("memory") {
            match self.hierarchies.version {
                Version::One => self.limit_memory_of_version_one(&memory)?,
                Version::Two => self.write("", "memory.max", &memory)?,
            }
        }
        if has("pids") {
            let controller = if self.hierarchies.version == Version::One { "pids" } else { "" };
            self.write(controller, "pids.max", &processes.to_string())?;
        }
        if has("cpu") {
            let period = CPU_PERIOD.as_micros();
            let (controller, burst) = self.hierarchies.burst();
            let saves = self.file(controller, burst)?.exists();
            if saves {
                // It may not be more than the limit, at any moment.
                self.write(controller, burst, "0")?;
            }
            match self.hierarchies.version {
                Version::One => self.write("cpu", "cpu.cfs_quota_us", &quota)?,
                Version::Two => self.write("", "cpu.max", &format!("{quota} {period}"))?,
            }
            if saves {
                self.write(controller, burst, &quota)?;
            }
        }
        Ok(())
    }

    /// Gives the processes the usual share of CPU time. Groups without that controller have it anyway.
    pub(crate) fn share_equally(&self) -> io::Result<()> {
        let (controller, file, usual) = match self.hierarchies.version {
            Version::One => ("cpu", "cpu.shares", "1024"),
            Version::Two => ("", "cpu.weight", "100"),
        };
        match self.file(controller, file) {
            Ok(path) if path.exists() => self.write(controller, file, usual),
            _ => Ok(()),
        }
    }

    /// The limit that the processes have reached since the group was made, if any.
    pub(crate) fn reached(&self) -> Option<LimitKind> {
        let (killed, refused) = match self.hierarchies.version {
            Version::One => (("memory", "memory.oom_control"), ("pids", "pids.events")),
            Version::Two => (("", "memory.events"), ("", "pids.events")),
        };
        let counts = |(controller, file): (&str, &str), counter: &str| {
            let counters = self.read(controller, file).unwrap_or_default();
            let mut lines = counters.lines().filter_map(|line| line.split_once(' '));
            lines.any(|(name, count)| name == counter && count.trim() != "0")
        };
        let memory = counts(killed, "oom_kill").then_some(LimitKind::Memory);
        memory.or_else(|| counts(refused, "max").then_some(LimitKind::Processes))
    }

    /// The limit of memory and swap together must never be below that of memory, so the order of the two writes
    /// depends on whether they grow. Kernels that don't count swap have only the limit of memory.
    fn limit_memory_of_version_one(&self, memory: &str) -> io::Result<()> {
        const MEMORY: &str = "memory.limit_in_bytes";
        const SUM: &str = "memory.memsw.limit_in_bytes";
        if !self.file("memory", SUM)?.exists() {
            return self.write("memory", MEMORY, memory);
        }
        if self.write("memory", SUM, memory).is_ok() {
            return self.write("memory", MEMORY, memory);
        }
        self.write("memory", MEMORY, memory)?;
        self.write("memory", SUM, memory)
    }

    /// Removes the groups, and kills every process that is still in them. Blocks until the processes are gone.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut tries = 1;
        loop {
            match self.hierarchies.each(&self.path, remove_directory) {
                Err(error)
                    if tries < REMOVE_ATTEMPTS && error.kind() == io::ErrorKind::ResourceBusy =>
                {
                    // Only now: usually none is left, and looking for them takes longer than the removal.
                    self.kill()?;
                    tries += 1;
                    std::thread::sleep(REMOVE_RETRY_INTERVAL);
                }
                removed => return removed,
            }
        }
    }

    /// Lets killed processes end: those that the freezer of version 1 has frozen die only when they are thawed.
    pub(crate) fn let_die(&self) {
        if self.hierarchies.freezer().0 == Version::One {
            // An error means that the groups are gone.
            let _ = self.thaw();
        }
    }

    /// Kills the processes of a sandbox that is being made.
    pub(crate) fn kill_unfinished(&self) -> io::Result<()> {
        kill_each(self.limited_pids()?)
    }

    /// Whether no process is in the groups beside one.
    pub(crate) fn has_one_process(&self) -> io::Result<bool> {
        Ok(self.limited_pids()?.len() == 1)
    }

    /// The IDs of the processes that are limited.
    fn limited_pids(&self) -> io::Result<BTreeSet<i32>> {
        let controller = if self.hierarchies.version == Version::One { "memory" } else { "" };
        pids_of(&self.file(controller, "")?)
    }

    /// Kills every process. With version 1 frozen ones die only when thawed, so it thaws them.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let mut pids = self.pids()?;
        if let Some(killed) = self.kill_together()? {
            pids.retain(|pid| !killed.contains(pid));
        }
        let is_empty = pids.is_empty();
        let killed = kill_each(pids);
        if !is_empty {
            or_if_gone(self.thaw())?;
        }
        killed
    }

    /// Has the kernel kill every process of the group of version 2 at once, frozen ones too, if it can (Linux 5.14).
    /// That leaves no moment in which a number may belong to another process already. Returns their
    /// IDs.
    fn kill_together(&self) -> io::Result<Option<BTreeSet<i32>>> {
        let (Version::Two, name) = self.hierarchies.freezer() else { return Ok(None) };
        let file = self.file(name, "cgroup.kill")?;
        if !file.exists() {
            return Ok(None);
        }
        let pids = pids_of(&self.file(name, "")?)?;
        or_if_gone(fs::write(&file, "1"))?;
        Ok(Some(pids))
    }

    /// Bytes that count towards the limit of memory now.
    pub(crate) fn used_memory(&self) -> io::Result<u64> {
        let (controller, file) = match self.hierarchies.version {
            Version::One => ("memory", "memory.usage_in_bytes"),
            Version::Two => ("", "memory.current"),
        };
        self.read(controller, file)?.trim().parse().map_err(io::Error::other)
    }

    /// Proportional memory (PSS) of all processes, in bytes: what several processes share counts for each of them in equal
    /// parts. Processes that end meanwhile count as zero.
    pub(crate) fn proportional_memory(&self) -> u64 {
        let pids = self.pids().unwrap_or_default();
        pids.into_iter().filter_map(proportional_memory).sum()
    }

    /// The IDs of all processes.
    fn pids(&self) -> io::Result<BTreeSet<i32>> {
        let mut pids = BTreeSet::new();
        self.hierarchies.each(&self.path, |group| {
            pids.append(&mut pids_of(group)?);
            Ok(())
        })?;
        Ok(pids)
    }
}

/// Kills processes, which may be gone. Returns the last error.
fn kill_each(pids: BTreeSet<i32>) -> io::Result<()> {
    let mut killed = Ok(());
    for pid in pids.into_iter().filter_map(Pid::from_raw) {
        match kill_process(pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => killed = Err(error.into()),
        }
    }
    killed
}

/// The IDs of the processes of a group, which may be gone.
fn pids_of(group: &Path) -> io::Result<BTreeSet<i32>> {
    let found = or_if_gone(fs::read_to_string(group.join("cgroup.procs")))?.unwrap_or_default();
    Ok(found.lines().flat_map(str::parse).collect())
}

/// Proportional memory of a process in bytes, as `proc_pid_smaps(5)` has it.
fn proportional_memory(pid: i32) -> Option<u64> {
    let parts = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = parts.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// CPU time in microseconds that a sandbox has in each [`CPU_PERIOD`].
pub(crate) fn quota(resources: Resources) -> u64 {
    // The kernel takes no less than a millisecond.
    (u64::from(resources.cpu.as_millis()) * CPU_PERIOD.as_micros() as u64 / 1000).max(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_quota_is_never_below_the_kernel_s_minimum() {
        use crate::engine::limits::{ByteSize, CpuShare};
        let quota_of =
            |millis| quota(Resources { memory: ByteSize::mib(1), cpu: CpuShare::millis(millis) });
        assert_eq!((quota_of(500), quota_of(2000), quota_of(1)), (50_000, 200_000, 1000));
    }
}
