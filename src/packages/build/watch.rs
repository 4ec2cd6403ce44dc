//! The bounds of a build: its disk space, and the resources of its tools.
//!
//! The author of a package decides how large it gets when it is unpacked, and how long its description is. So the
//! kernel bounds each file and the memory of each process, and the rest is measured while a tool works.
//! A tool that reaches a bound is ended at once.

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use isolator_pool::engine::ToolGroup;
use isolator_pool::engine::limits::{ByteSize, LimitKind};
use isolator_pool::lock::lock;
use isolator_pool::quote::quoted;
use rustix::fs::statvfs;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::time::{Instant, sleep};

use super::error::BuildError;
use super::processes;
use crate::config::PackagesConfig;
use crate::packages::blocking::blocking;
use crate::packages::store::tree::{DEEPEST, MOST_ENTRIES};
use crate::packages::store::{Building, Growth, Usage};

/// The interval at which the free space of the disk is read, which takes microseconds.
const LOOK_AT_DISK: Duration = Duration::from_millis(20);

/// The interval at which the processes of a tool are read, which takes a millisecond for some hundred processes of the machine.
const LOOK_AT_PROCESSES: Duration = Duration::from_millis(100);

/// The files are measured at this interval, and when the free space has shrunk by this part of the build's limit. Measuring takes
/// at most one part in `REST` of the time.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
const MEASURE_AFTER: u64 = 16;
const REST: u32 = 8;

/// The free space that a build must leave on the disk: this much, or a part of a small disk.
const FREE_BYTES: u64 = 512 << 20;
const FREE_FILES: u64 = 10_000;
const FREE_SHARE: u64 = 20;

/// Processes and threads of a tool.
const MOST_TASKS: u32 = 2048;

/// Memory that threads reserve for each core and don't use, in bytes.
const STACKS: u64 = 16 << 20;

/// The kernel kills processes with a higher score first if memory runs out. A program in a sandbox has the same.
const OOM_SCORE: &str = "500";

/// The words of tools that get no more memory, and of those whose file gets too long.
const NO_MEMORY: [&str; 7] = [
    "memory allocation of",
    "heap out of memory",
    "Fatal process out of memory",
    "Array buffer allocation failed",
    "Cannot allocate memory",
    "ENOMEM",
    "std::bad_alloc",
];
const TOO_LONG: [&str; 4] = ["os error 27", "File too large", "EFBIG", "SIGXFSZ"];

/// Signals by which a process ends that gets no memory.
const WITHOUT_MEMORY: [i32; 5] =
    [libc::SIGABRT, libc::SIGTRAP, libc::SIGILL, libc::SIGSEGV, libc::SIGKILL];

/// The bounds of one build.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// Bytes of the set, and so of its longest file.
    pub set: u64,
    /// Bytes of all files that the build brings to the disk.
    pub disk: u64,
    /// Memory of a tool, with all its processes.
    pub memory: ByteSize,
    /// Processes and threads of a tool.
    pub tasks: u32,
}

impl Bounds {
    /// The bounds of a configuration.
    pub(super) fn of(config: &PackagesConfig) -> Self {
        let set = config.max_store.as_bytes();
        Self { set, disk: set + config.max_cache(), memory: config.build_memory, tasks: MOST_TASKS }
    }

    /// The error for a build with these files, if they are too many or too large.
    fn refuse(&self, usage: &Usage) -> Option<BuildError> {
        let of_which = usage.largest().map(|name| format!(", most of it in {}", quoted(name)));
        let of_which = of_which.unwrap_or_default();
        if let Some(name) = &usage.too_deep {
            return Some(BuildError::Refused(format!(
                "it has folders in folders that are deeper than {DEEPEST}, in {}: ask for another version",
                quoted(name)
            )));
        }
        if usage.bytes > self.disk {
            return Some(BuildError::Refused(format!(
                "what was downloaded and unpacked has more than {} MiB{of_which}, and all sets together can have {} MiB: ask for \
                 less or for another version, or raise packages.maxStoreMB",
                self.disk >> 20,
                self.set >> 20
            )));
        }
        // Each folder is there twice: in the cache of uv, and where it is installed.
        if usage.entries > 2 * MOST_ENTRIES {
            return Some(BuildError::Refused(format!(
                "there are more than {MOST_ENTRIES} files{of_which}: ask for less or for another version"
            )));
        }
        None
    }
}

/// Watches one build.
pub(super) struct Watch<'w> {
    /// The set that is built.
    pub building: &'w Building,
    bounds: Bounds,
    group: Option<Box<dyn ToolGroup>>,
    /// The most memory that a tool had.
    peak: Mutex<u64>,
}

impl<'w> Watch<'w> {
    /// A watch of a build.
    pub(super) fn new(
        building: &'w Building,
        bounds: Bounds,
        group: Option<Box<dyn ToolGroup>>,
    ) -> Self {
        Self { building, bounds, group, peak: Mutex::default() }
    }

    /// Does work that writes files, and ends it at a bound.
    ///
    /// # Errors
    ///
    /// The bound that was reached.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Result<T, BuildError> {
        let done = tokio::select! {
            done = work => done,
            reached = self.disk() => return Err(self.refused(reached)),
        };
        // The last files were not measured yet.
        match self.measured(self.building.growth()).await {
            Some(reached) => Err(self.refused(reached)),
            None => Ok(done),
        }
    }

    /// The same for a tool with this leader, whose processes are bounded as well. Each may reserve `reserved` bytes more than it uses.
    pub(super) async fn during_tool<T>(
        &self,
        tool: &'static str,
        reserved: u64,
        leader: Option<Pid>,
        work: impl Future<Output = T>,
    ) -> Result<T, BuildError> {
        self.during(async {
            tokio::select! {
                done = work => Ok(done),
                reached = self.processes(tool, reserved, leader) => Err(self.refused(reached)),
            }
        })
        .await?
    }

    /// The bound of the kernel that has made a tool fail, if one has.
    pub(super) fn explain(
        &self,
        tool: &'static str,
        status: ExitStatus,
        said: &str,
    ) -> Option<BuildError> {
        let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
        if let Some(reached) = self.of_group(tool) {
            return Some(self.refused(reached));
        }
        let had_most = *lock(&self.peak) >= self.bounds.memory.as_bytes() / 4 * 3;
        let is_killed = status.signal().is_some_and(|it| WITHOUT_MEMORY.contains(&it));
        if says(&NO_MEMORY) || is_killed && had_most {
            return Some(self.refused(self.no_memory(tool)));
        }
        if says(&TOO_LONG) || status.signal() == Some(libc::SIGXFSZ) {
            return Some(self.refused(BuildError::Refused(format!(
                "a file has more than {} MiB, which is what all sets together can have: ask for another version, or raise \
                 packages.maxStoreMB\n{said}",
                self.bounds.set >> 20
            ))));
        }
        None
    }

    fn no_memory(&self, tool: &'static str) -> BuildError {
        BuildError::Memory { tool, most: self.bounds.memory.as_mib() }
    }

    fn many_tasks(&self, tool: &'static str) -> BuildError {
        let most = self.bounds.tasks;
        BuildError::Refused(format!(
            "{tool} has started more than {most} processes and threads for it"
        ))
    }

    /// The bound of its control group that a tool has reached.
    fn of_group(&self, tool: &'static str) -> Option<BuildError> {
        match self.group.as_ref()?.reached()? {
            LimitKind::Memory => Some(self.no_memory(tool)),
            LimitKind::Processes => Some(self.many_tasks(tool)),
            LimitKind::Cpu => None,
        }
    }

    /// The error, after its unpacked files are marked for removal.
    fn refused(&self, error: BuildError) -> BuildError {
        self.building.spoil_cache();
        error
    }

    /// Watches the disk until a bound is reached, and returns it.
    async fn disk(&self) -> BuildError {
        let growth = self.building.growth();
        let mut then = (0, 0);
        let (mut measured, mut took) = (Instant::now(), Duration::ZERO);
        loop {
            sleep(LOOK_AT_DISK).await;
            let mut is_growing = false;
            if let Ok(disk) = statvfs(growth.folder()) {
                let free = (disk.f_bavail * disk.f_frsize, disk.f_favail);
                let least = FREE_BYTES.min(disk.f_blocks * disk.f_frsize / FREE_SHARE);
                // Some file systems have no fixed number of files.
                let is_without_files =
                    disk.f_files > 0 && free.1 < FREE_FILES.min(disk.f_files / FREE_SHARE);
                if free.0 < least || is_without_files {
                    return BuildError::Full(growth.folder().to_owned());
                }
                then = (then.0.max(free.0), then.1.max(free.1));
                is_growing = then.0 - free.0 > self.bounds.disk / MEASURE_AFTER
                    || then.1 - free.1 > MOST_ENTRIES as u64 / MEASURE_AFTER;
                if is_growing && measured.elapsed() > took {
                    then = free;
                }
            }
            let pause = if is_growing { took } else { MEASURE_EVERY.max(took * REST) };
            if measured.elapsed() <= pause {
                continue;
            }
            let began = Instant::now();
            if let Some(reached) = self.measured(growth.clone()).await {
                return reached;
            }
            (measured, took) = (Instant::now(), began.elapsed());
        }
    }

    async fn measured(&self, growth: Growth) -> Option<BuildError> {
        match blocking(move || growth.measure()).await {
            Ok(usage) => self.bounds.refuse(&usage),
            Err(error) => Some(error.into()),
        }
    }

    /// Watches the processes of a tool until a bound is reached, and returns it. The kernel bounds each process separately.
    async fn processes(
        &self,
        tool: &'static str,
        reserved: u64,
        leader: Option<Pid>,
    ) -> BuildError {
        let Some(leader) = leader else { return std::future::pending().await };
        self.limit(leader, reserved);
        let mut limited = HashSet::from([leader]);
        loop {
            sleep(LOOK_AT_PROCESSES).await;
            let found = blocking(move || processes::of_tool(leader)).await;
            let found = found.unwrap_or_default();
            for pid in found.pids {
                // Children inherit limits, but some may have started before their parent was limited.
                if limited.insert(pid) {
                    self.limit(pid, reserved);
                }
            }
            if let Some(reached) = self.of_group(tool) {
                return reached;
            }
            {
                let mut peak = lock(&self.peak);
                *peak = (*peak).max(found.memory);
            }
            if found.memory > self.bounds.memory.as_bytes() {
                return self.no_memory(tool);
            }
            if found.tasks > self.bounds.tasks.into() {
                return self.many_tasks(tool);
            }
        }
    }

    /// Limits a process, and lets the kernel kill it before others.
    fn limit(&self, pid: Pid, reserved: u64) {
        // Threads reserve their stacks as well.
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let data = self.bounds.memory.as_bytes() + reserved + cores * STACKS;
        for (resource, most) in [
            (Resource::Fsize, self.bounds.set),
            (Resource::Data, data),
            // With one byte the kernel starts no program that handles core dumps, which with zero it would.
            (Resource::Core, 1),
        ] {
            let own = getrlimit(resource);
            let most = own.maximum.map_or(most, |own| own.min(most));
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            // It may have ended.
            if let Err(error) = prlimit(Some(pid), resource, limit) {
                tracing::debug!(%error, ?resource, "a tool that installs packages is not limited");
            }
        }
        if let Some(Err(error)) = self.group.as_ref().map(|group| group.take_in(pid)) {
            tracing::debug!(%error, "a tool that installs packages is not in its control group");
        }
        let score = PathBuf::from(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero()));
        if let Err(error) = fs::write(score, OOM_SCORE) {
            tracing::debug!(%error, "a tool that installs packages is killed as late as others");
        }
    }
}
