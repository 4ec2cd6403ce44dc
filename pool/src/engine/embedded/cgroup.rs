//! Control groups of sandboxes: listed, limited, frozen, killed and removed, on version 1 and 2.
//!
//! `libcontainer` creates a sandbox's groups and puts its first process into them. Everything after that
//! is a few writes to files, which the server does itself, because every warm start has to wait for thawing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::engine::SandboxState;
use crate::engine::limits::Resources;

/// Where control groups are usually mounted, and where launchers mount version 2.
pub(super) const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// The parent group of all instances' groups.
const INSTANCES_GROUP: &str = "isolator";

/// The group that the server moves itself into if its own group was delegated to it.
const SERVER_GROUP: &str = "isolator-server";

/// Our name for version 2 as a freezer, where it is mounted in addition to version 1. It limits nothing there,
/// but processes that it freezes can be killed. With the freezer of version 1, frozen processes would survive
/// the end of their launcher.
const V2_FREEZER: &str = "version 2";

/// The controllers that limit sandboxes.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// How often the state of the freezer is checked, and how often freezing is tried. A group in which
/// processes are being forked may need a second attempt, as the kernel documents for version 1.
const FREEZE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const FREEZE_CHECKS: u32 = 50;
const FREEZE_ATTEMPTS: u32 = 5;

/// How often, and at what interval, to try to remove a group whose processes have just been killed.
const REMOVE_ATTEMPTS: u32 = 200;
const REMOVE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The period of CPU limits: the kernel's default.
pub(super) const CPU_PERIOD: Duration = Duration::from_millis(100);

/// The version of the groups that limit sandboxes. Where both are mounted, that is version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// Where control groups are mounted.
#[derive(Debug, Clone)]
pub(super) struct Hierarchies {
    pub(super) version: Version,
    /// Name of the controllers and where they are mounted; one entry without a name with version 2.
    mounts: Vec<(String, PathBuf)>,
    /// The parent of [`INSTANCES_GROUP`], without a leading slash.
    base: PathBuf,
}

/// The groups of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Cgroup {
    hierarchies: Hierarchies,
    /// Path below each mount.
    path: PathBuf,
}

/// Where version 2 is mounted.
pub(super) fn version_two_mount() -> io::Result<PathBuf> {
    let mounts = parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)?;
    let second = mounts.into_iter().find(|found| found.version == Version::Two);
    second.and_then(|mut found| found.mounts.pop()).map(|(_, mount)| mount).ok_or_else(not_mounted)
}

impl Hierarchies {
    /// The hierarchies of a machine on which this process may create groups anywhere.
    pub(super) fn of_machine() -> io::Result<Self> {
        parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)?
            .first()
            .cloned()
            .ok_or_else(not_mounted)
    }

    /// The hierarchy that was delegated to this process: its own group of version 2, if it is writable. A group
    /// that enables controllers for its children must not contain processes, so this process moves into a
    /// child group of its own.
    pub(super) fn delegated() -> io::Result<Self> {
        let mounts = parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)?;
        let second = mounts.into_iter().find(|found| found.version == Version::Two);
        let mut second = second.ok_or_else(not_mounted)?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own =
            groups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(not_mounted)?;
        let own = Path::new(own);
        let is_moved = own.file_name().is_some_and(|name| name == SERVER_GROUP);
        second.base = if is_moved { own.parent().unwrap_or(own) } else { own }.to_owned();
        let base = second.mount("")?.join(&second.base);
        let server = base.join(SERVER_GROUP);
        fs::create_dir_all(&server)
            .and_then(|()| fs::write(server.join("cgroup.procs"), "0"))
            .map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", base.display()))
            })?;
        for controller in CONTROLLERS {
            // `missing` reports the controllers that could not be enabled.
            let _ = fs::write(base.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        Ok(second)
    }

    /// The groups of a sandbox.
    pub(super) fn of(&self, instance: &str, name: &str) -> Cgroup {
        Cgroup { hierarchies: self.clone(), path: self.root().join(instance).join(name) }
    }

    /// Whether the kernel counts socket buffers apart from memory, and only if they have a limit. Some kernels
    /// do so with version 1.
    pub(super) fn count_sockets_apart(&self) -> bool {
        let file = |mount: &Path| mount.join("memory.kmem.tcp.limit_in_bytes");
        self.version == Version::One && self.mount("memory").is_ok_and(|mount| file(mount).exists())
    }

    /// The version of the freezer, and the name of its hierarchy.
    fn freezer(&self) -> (Version, &'static str) {
        match self.version {
            Version::Two => (Version::Two, ""),
            Version::One if self.mount(V2_FREEZER).is_ok() => (Version::Two, V2_FREEZER),
            Version::One => (Version::One, "freezer"),
        }
    }

    fn root(&self) -> PathBuf {
        self.base.join(INSTANCES_GROUP)
    }

    /// Where a controller is mounted.
    fn mount(&self, controller: &str) -> io::Result<&Path> {
        let named = |(name, _): &&(String, PathBuf)| {
            self.version == Version::Two || name.split(',').any(|name| name == controller)
        };
        let found = self.mounts.iter().find(named).map(|(_, mount)| mount.as_path());
        found.ok_or_else(|| {
            io::Error::other(format!("the control group controller {controller} is not mounted"))
        })
    }

    /// The controllers that can't limit sandboxes. Creates the parent group of all instances.
    ///
    /// # Errors
    ///
    /// When no groups can be created at all.
    pub(super) fn missing(&self) -> io::Result<Vec<&'static str>> {
        let make = |mount: &Path| {
            let root = mount.join(self.root());
            let made = fs::create_dir_all(&root);
            made.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", root.display()))
            })
        };
        let mut missing = Vec::new();
        match self.version {
            Version::One => {
                make(self.mount(self.freezer().1)?)?;
                for controller in CONTROLLERS {
                    match self.mount(controller) {
                        Ok(mount) => make(mount)?,
                        Err(_) => missing.push(controller),
                    }
                }
            }
            Version::Two => {
                let mount = self.mount("")?;
                make(mount)?;
                let base = mount.join(&self.base);
                let available = fs::read_to_string(base.join("cgroup.controllers"))?;
                let handed_on = fs::read_to_string(base.join("cgroup.subtree_control"))?;
                let has = |list: &str, name: &str| list.split_whitespace().any(|n| n == name);
                // In the machine's root group they are enabled when the first sandbox is made.
                let is_machine = self.base.as_os_str().is_empty();
                missing.extend(CONTROLLERS.into_iter().filter(|controller| {
                    !has(&available, controller) || !(is_machine || has(&handed_on, controller))
                }));
            }
        }
        Ok(missing)
    }

    /// All sandboxes that have groups: instance and name of each.
    pub(super) fn list(&self) -> io::Result<BTreeSet<(String, String)>> {
        let mut found = BTreeSet::new();
        for (_, mount) in &self.mounts {
            for instance in directories(&mount.join(self.root()))? {
                for sandbox in directories(&mount.join(self.root()).join(&instance))? {
                    found.insert((instance.clone(), sandbox));
                }
            }
        }
        Ok(found)
    }

    /// All instances that have groups, with or without sandboxes in them.
    pub(super) fn instances(&self) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for (_, mount) in &self.mounts {
            found.extend(directories(&mount.join(self.root()))?);
        }
        Ok(found)
    }

    /// Makes the group of an instance, if it is not there. Launchers make sandboxes at the same time, and with
    /// version 2 `libcontainer` fails when another process makes a parent group that it was about to make.
    pub(super) fn make_instance(&self, instance: &str) -> io::Result<()> {
        match self.version {
            Version::One => Ok(()),
            Version::Two => {
                self.each(&self.root().join(instance), |group| fs::create_dir_all(group))
            }
        }
    }

    /// Removes the group of an instance, which must be empty.
    pub(super) fn remove_instance(&self, instance: &str) -> io::Result<()> {
        self.each(&self.root().join(instance), remove_directory)
    }

    fn each(&self, path: &Path, mut act: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
        self.mounts.iter().try_for_each(|(_, mount)| act(&mount.join(path)))
    }
}

impl Cgroup {
    /// The path for an OCI runtime specification. It is absolute, so that `libcontainer` does not use systemd.
    pub(super) fn oci_path(&self) -> String {
        format!("/{}", self.path.display())
    }

    /// The groups that a sandbox may see: the path for its launcher, and the name below [`CGROUP_MOUNT`] in the
    /// sandbox.
    pub(super) fn visible(&self) -> Vec<(PathBuf, &'static str)> {
        match self.hierarchies.version {
            Version::One => ["memory", "pids", "cpu"]
                .into_iter()
                .filter_map(|name| Some((self.file(name, "").ok()?, name)))
                .collect(),
            Version::Two => vec![(Path::new(CGROUP_MOUNT).join(&self.path), "")],
        }
    }

    fn file(&self, controller: &str, name: &str) -> io::Result<PathBuf> {
        Ok(self.hierarchies.mount(controller)?.join(&self.path).join(name))
    }

    fn write(&self, controller: &str, name: &str, value: &str) -> io::Result<()> {
        let file = self.file(controller, name)?;
        fs::write(&file, value)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }

    fn read(&self, controller: &str, name: &str) -> io::Result<String> {
        fs::read_to_string(self.file(controller, name)?)
    }

    /// The group of its freezer, if `libcontainer` does not create it.
    pub(super) fn separate_freezer(&self) -> Option<PathBuf> {
        let is_separate = self.hierarchies.freezer().1 == V2_FREEZER;
        is_separate.then(|| self.file(V2_FREEZER, "").ok()).flatten()
    }

    /// Freezes every process, and waits until all are frozen.
    pub(super) async fn freeze(&self) -> io::Result<()> {
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
    pub(super) fn thaw(&self) -> io::Result<()> {
        match self.hierarchies.freezer() {
            (Version::One, name) => self.write(name, "freezer.state", "THAWED"),
            (Version::Two, name) => self.write(name, "cgroup.freeze", "0"),
        }
    }

    /// Whether every process is frozen.
    pub(super) fn is_frozen(&self) -> io::Result<bool> {
        Ok(match self.hierarchies.freezer() {
            (Version::One, name) => self.read(name, "freezer.state")?.trim() == "FROZEN",
            (Version::Two, name) => {
                self.read(name, "cgroup.events")?.lines().any(|line| line == "frozen 1")
            }
        })
    }

    /// The state of a sandbox of whose process 1 there is no descriptor.
    pub(super) fn state(&self) -> io::Result<SandboxState> {
        if self.pids()?.is_empty() {
            return Ok(SandboxState::Stopped);
        }
        // It may just be removed, or not have joined its freezer yet.
        let is_frozen = or_if_gone(self.is_frozen())?.unwrap_or_default();
        Ok(if is_frozen { SandboxState::Paused } else { SandboxState::Running })
    }

    /// Changes the limits of the controllers for which `has` returns true.
    pub(super) fn limit(&self, resources: Resources, has: impl Fn(&str) -> bool) -> io::Result<()> {
        let memory = resources.memory.as_bytes().to_string();
        let quota = quota(resources).to_string();
        if has("memory") {
            match self.hierarchies.version {
                Version::One => self.limit_memory_of_version_one(&memory)?,
                Version::Two => self.write("", "memory.max", &memory)?,
            }
        }
        if has("cpu") {
            let period = CPU_PERIOD.as_micros();
            match self.hierarchies.version {
                Version::One => self.write("cpu", "cpu.cfs_quota_us", &quota)?,
                Version::Two => self.write("", "cpu.max", &format!("{quota} {period}"))?,
            }
        }
        Ok(())
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

    /// Kills every process and removes the groups. Blocks until the processes are gone.
    pub(super) fn remove(&self) -> io::Result<()> {
        let mut tries = 1;
        loop {
            self.kill()?;
            let removed = self.hierarchies.each(&self.path, remove_directory);
            match removed {
                Err(error)
                    if tries < REMOVE_ATTEMPTS && error.kind() == io::ErrorKind::ResourceBusy =>
                {
                    tries += 1;
                    std::thread::sleep(REMOVE_RETRY_INTERVAL);
                }
                removed => return removed,
            }
        }
    }

    /// Kills every process. With version 1 frozen ones die only when thawed, so it thaws them.
    pub(super) fn kill(&self) -> io::Result<()> {
        let mut failed = None;
        let pids = self.pids()?;
        let is_empty = pids.is_empty();
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            match kill_process(pid, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => failed = Some(error),
            }
        }
        if !is_empty {
            or_if_gone(self.thaw())?;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The IDs of all processes.
    fn pids(&self) -> io::Result<BTreeSet<i32>> {
        let mut pids = BTreeSet::new();
        self.hierarchies.each(&self.path, |group| {
            let found = or_if_gone(fs::read_to_string(group.join("cgroup.procs")))?;
            let found = found.unwrap_or_default();
            pids.extend(found.lines().flat_map(str::parse::<i32>));
            Ok(())
        })?;
        Ok(pids)
    }
}

/// CPU time in microseconds that a sandbox has in each [`CPU_PERIOD`].
pub(super) fn quota(resources: Resources) -> u64 {
    // The kernel takes no less than a millisecond.
    (u64::from(resources.cpu.as_millis()) * CPU_PERIOD.as_micros() as u64 / 1000).max(1000)
}

fn or_if_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // Reading the file of a process that has just ended.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn remove_directory(path: &Path) -> io::Result<()> {
    or_if_gone(fs::remove_dir(path)).map(|_| ())
}

fn directories(path: &Path) -> io::Result<Vec<String>> {
    let Some(entries) = or_if_gone(fs::read_dir(path))? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn not_mounted() -> io::Error {
    io::Error::other("no control groups are mounted")
}

/// Parses `/proc/self/mountinfo` (see proc(5)). If both versions are mounted, the one that limits memory comes
/// first.
fn parse_mounts(mountinfo: &str) -> io::Result<Vec<Hierarchies>> {
    let mut first = Vec::new();
    let mut second: Vec<(String, PathBuf)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let Some(target) = mount.split(' ').nth(4) else { continue };
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next(), file_system.nth(1).unwrap_or_default());
        match kind {
            Some("cgroup") if !options.contains("name=") => {
                first.push((options.trim_start_matches("rw,").to_owned(), target.into()));
            }
            Some("cgroup2") if second.is_empty() => second.push((String::new(), target.into())),
            _ => {}
        }
    }
    let is_first = first.iter().any(|(names, _)| names.split(',').any(|name| name == "memory"));
    let hierarchies = |version, mounts| Hierarchies { version, mounts, base: PathBuf::new() };
    let mut found = Vec::new();
    if is_first {
        first.extend(second.iter().map(|(_, mount)| (V2_FREEZER.to_owned(), mount.clone())));
        found.push(hierarchies(Version::One, first));
    }
    if !second.is_empty() {
        found.push(hierarchies(Version::Two, second));
    }
    if found.is_empty() { Err(not_mounted()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_limits_memory_is_used() {
        let first = "30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                     31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                     32 24 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let second = "33 24 0:29 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let both = parse_mounts(&format!("{first}{second}")).unwrap();
        assert_eq!(both[0].version, Version::One);
        assert_eq!(both[0].mounts.len(), 3, "the one with a name limits nothing");
        assert_eq!(both[0].freezer(), (Version::Two, V2_FREEZER));
        assert_eq!(parse_mounts(first).unwrap()[0].freezer(), (Version::One, "freezer"));
        assert_eq!(both[1].freezer(), (Version::Two, ""));
        assert_eq!(both[0].mount("cpu").unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert!(both[0].mount("pids").is_err());
        assert_eq!(both[1].mount("").unwrap(), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(parse_mounts(second).unwrap()[0].version, Version::Two);
        assert!(parse_mounts("22 1 254:0 / / rw - ext4 /dev/vda rw\n").is_err());
    }

    #[test]
    fn a_cpu_quota_is_never_below_the_kernel_s_minimum() {
        use crate::engine::limits::{ByteSize, CpuShare};
        let quota_of =
            |millis| quota(Resources { memory: ByteSize::mib(1), cpu: CpuShare::millis(millis) });
        assert_eq!((quota_of(500), quota_of(2000), quota_of(1)), (50_000, 200_000, 1000));
    }
}
