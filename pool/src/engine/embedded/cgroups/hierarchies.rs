//! Where control groups are mounted, and the groups of all instances below, on version 1 and 2.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_remount};

use super::container;
use super::version::{CONTROLLERS, SERVER_GROUP, Version};
use crate::engine::embedded::at;

/// The parent group of all instances' groups.
const INSTANCES_GROUP: &str = "isolator";

/// Our name for version 2 as a freezer, where it is mounted in addition to version 1. It limits nothing there,
/// but processes that it freezes can be killed. With the freezer of version 1, frozen processes would survive
/// the end of their launcher.
pub(crate) const V2_FREEZER: &str = "version 2";

/// The controller of version 1 that says which devices can be opened.
const DEVICES: &str = "devices";

/// Where control groups are mounted.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchies {
    pub(crate) version: Version,
    /// Name of the controllers in use and where they are mounted; one entry without a name with version 2.
    pub(super) mounts: Vec<(String, PathBuf)>,
    /// Where [`DEVICES`] is mounted, which has groups of instances only.
    pub(super) devices: Option<PathBuf>,
    /// The parent of [`INSTANCES_GROUP`], without a leading slash.
    base: PathBuf,
    /// Whether they are those of a container, whose end must not depend on this process.
    is_of_container: bool,
}

/// Where version 2 is mounted.
pub(crate) fn version_two_mount() -> io::Result<PathBuf> {
    let mounts = parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)?;
    let second = mounts.into_iter().find(|found| found.version == Version::Two);
    second.and_then(|mut found| found.mounts.pop()).map(|(_, mount)| mount).ok_or_else(not_mounted)
}

impl Hierarchies {
    /// The hierarchies of a machine on which this process may create groups anywhere.
    pub(crate) fn of_machine() -> io::Result<Self> {
        parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)?
            .first()
            .cloned()
            .ok_or_else(not_mounted)
    }

    /// The hierarchies that root may use: those of the machine, or, in a container, the container's groups and what is below.
    pub(crate) fn of_root() -> io::Result<Self> {
        let mut found = Self::of_machine()?;
        let controller = if found.version == Version::One { "memory" } else { "" };
        let limiting = found.mount(controller)?.to_owned();
        found.is_of_container = container::is_of_container(found.version, &limiting);
        if found.is_of_container {
            let mounts = found.mounts.iter().map(|(_, mount)| mount);
            mounts.chain(&found.devices).try_for_each(|mount| container::make_writable(mount))?;
            if found.version == Version::Two {
                container::hand_on(&limiting)?;
            }
        }
        Ok(found)
    }

    /// The hierarchy that was delegated to this process: its own group of version 2, if it is writable. A group
    /// that enables controllers for its children must not contain processes, so this process moves into a
    /// child group of its own.
    pub(crate) fn delegated() -> io::Result<Self> {
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
            .map_err(at(&base))?;
        for controller in CONTROLLERS {
            // `missing` reports the controllers that could not be enabled.
            let _ = fs::write(base.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        Ok(second)
    }

    /// The version of the freezer, and the name of its hierarchy.
    pub(crate) fn freezer(&self) -> (Version, &'static str) {
        match self.version {
            Version::Two => (Version::Two, ""),
            Version::One if self.mount(V2_FREEZER).is_ok() => (Version::Two, V2_FREEZER),
            Version::One => (Version::One, "freezer"),
        }
    }

    /// Whether sandboxes can be frozen. With the freezer of version 1, a frozen process does not end when it is killed. A container
    /// whose server was killed would never end.
    pub(crate) fn can_freeze(&self) -> bool {
        !(self.is_of_container && self.freezer().0 == Version::One)
    }

    /// The controller and the file for the CPU time that can be saved, in microseconds (Linux 5.14).
    pub(crate) fn burst(&self) -> (&'static str, &'static str) {
        match self.version {
            Version::One => ("cpu", "cpu.cfs_burst_us"),
            Version::Two => ("", "cpu.max.burst"),
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.base.join(INSTANCES_GROUP)
    }

    /// Where a controller is mounted.
    pub(crate) fn mount(&self, controller: &str) -> io::Result<&Path> {
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
    pub(crate) fn missing(&self) -> io::Result<Vec<&'static str>> {
        let make = |mount: &Path| {
            let root = mount.join(self.root());
            make_group(&root).map(|_| ()).map_err(at(&root))
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
    pub(crate) fn list(&self) -> io::Result<BTreeSet<(String, String)>> {
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
    pub(crate) fn instances(&self) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for mount in self.mounts.iter().map(|(_, mount)| mount).chain(&self.devices) {
            found.extend(directories(&mount.join(self.root()))?);
        }
        Ok(found)
    }

    /// Makes the groups of a path that limit memory and processes, and those above it.
    pub(crate) fn make_limiting(&self, path: &Path) -> io::Result<()> {
        let controllers: &[&str] = match self.version {
            Version::One => &["memory", "pids"],
            Version::Two => &[""],
        };
        for controller in controllers {
            let mut group = self.mount(controller)?.join(&self.base);
            for name in path.strip_prefix(&self.base).unwrap_or(path) {
                if self.version == Version::Two {
                    // A controller that could not be enabled can't limit, which is reported later.
                    for controller in ["+memory", "+pids"] {
                        let _ = fs::write(group.join("cgroup.subtree_control"), controller);
                    }
                }
                group.push(name);
                make_group(&group)?;
            }
        }
        Ok(())
    }

    /// Removes the group of an instance, which must be empty.
    pub(crate) fn remove_instance(&self, instance: &str) -> io::Result<()> {
        let path = self.root().join(instance);
        self.devices.as_ref().map_or(Ok(()), |mount| remove_directory(&mount.join(&path)))?;
        self.each(&path, remove_directory)
    }

    pub(crate) fn each(
        &self,
        path: &Path,
        mut act: impl FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.mounts.iter().try_for_each(|(_, mount)| act(&mount.join(path)))
    }
}

/// Makes a group, if it is not there, in a group that is. Sandboxes can enter it, whatever the umask of this process is: their
/// users are others. Returns whether it was made.
fn make_group(path: &Path) -> io::Result<bool> {
    const MODE: u32 = 0o755;
    let is_new = match fs::create_dir(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    if fs::metadata(path)?.permissions().mode() & MODE != MODE {
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
    }
    Ok(is_new)
}

/// Tells the kernel to favour changes of control groups (`favordynmods` in its documentation of them). Otherwise a process that
/// moves into a group waits until every CPU has passed a quiescent state, which takes 8 ms. It holds for the whole machine:
/// with kernels before 6.18 as long as the mount is there, with later ones until they end.
///
/// # Errors
///
/// The kernel's; kernels before 6.0 don't know the option.
pub(crate) fn favor_changes(version: Version, point: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let option = "favordynmods";
    match version {
        // A hierarchy of version 1 that is there does not take it, but one without controllers holds for all.
        Version::One => {
            fs::create_dir(point)?;
            let options = CString::new(format!("none,name=isolator,{option}"))?;
            mount("none", point, "cgroup", flags, &*options)?;
        }
        Version::Two => {
            // Options that are not named again would be reset.
            let options = options_of_version_two(&fs::read_to_string("/proc/self/mountinfo")?);
            let options = options.ok_or_else(not_mounted)?;
            if !options.split(',').any(|found| found == option) {
                let options = format!("{options},{option}");
                let options = CString::new(options.trim_start_matches(','))?;
                mount_remount(version_two_mount()?, flags, &*options)?;
            }
        }
    }
    Ok(())
}

/// The options of the file system of version 2, without whether it can be written.
fn options_of_version_two(mountinfo: &str) -> Option<String> {
    let options =
        mountinfo.lines().find_map(|line| line.split_once(" - cgroup2 ")?.1.split(' ').nth(1));
    let is_other = |option: &&str| !matches!(*option, "rw" | "ro");
    options.map(|options| options.split(',').filter(is_other).collect::<Vec<_>>().join(","))
}

pub(crate) fn or_if_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
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

pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
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
    let mut first: Vec<(String, PathBuf)> = Vec::new();
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
    let has = |names: &str, wanted: &str| names.split(',').any(|name| name == wanted);
    let hierarchies = |version, mounts, devices| Hierarchies {
        version,
        mounts,
        devices,
        base: PathBuf::new(),
        is_of_container: false,
    };
    let mut found = Vec::new();
    if first.iter().any(|(names, _)| has(names, "memory")) {
        let devices = first.iter().find(|(names, _)| has(names, DEVICES));
        let devices = devices.map(|(_, mount)| mount.clone());
        let freezer = second.is_empty().then_some("freezer");
        let used = |names: &str| CONTROLLERS.into_iter().chain(freezer).any(|one| has(names, one));
        first.retain(|(names, _)| used(names));
        first.extend(second.iter().map(|(_, mount)| (V2_FREEZER.to_owned(), mount.clone())));
        found.push(hierarchies(Version::One, first, devices));
    }
    if !second.is_empty() {
        found.push(hierarchies(Version::Two, second, None));
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
        let options =
            "33 24 0:29 / /sys rw,nosuid - cgroup2 none rw,nsdelegate,memory_recursiveprot\n";
        let found = options_of_version_two(&format!("{first}{options}")).unwrap();
        assert_eq!(found, "nsdelegate,memory_recursiveprot");
        assert_eq!(options_of_version_two(second).unwrap(), "");
        assert!(options_of_version_two(first).is_none());
        assert!(parse_mounts("22 1 254:0 / / rw - ext4 /dev/vda rw\n").is_err());
    }

    #[test]
    fn every_user_can_enter_a_group_whatever_the_umask_was() {
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("isolator");
        let mode = || fs::metadata(&group).unwrap().permissions().mode() & 0o777;
        assert!(make_group(&group).unwrap());
        assert_eq!(mode(), 0o755);
        // As a server with umask 077 left it.
        fs::set_permissions(&group, Permissions::from_mode(0o700)).unwrap();
        assert!(!make_group(&group).unwrap());
        assert_eq!(mode(), 0o755);
    }
}
