//! The file systems of a sandbox, made and placed by its process 1.
//!
//! A target is looked up below the sandbox's own root, `/proc` or `/sys`, through no link. So nothing in an image decides where a
//! mount goes, and what is hidden or made read-only is that of the file system that was mounted a moment ago.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, mkdirat, openat, openat2,
};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::attempt::{Attempt, Step};
use super::ready::{DEVICES, OPTIONS_OF_DEVICES, fill_devices};
use crate::engine::embedded::launcher::mounting::{
    self, HARMLESS, NO_PROGRAMS, READ_ONLY, again, place,
};
use crate::engine::embedded::plan::Role;

/// The part of `/proc` that a template sees: of the processes only itself, because it mounts this. In a whole `/proc` it would
/// see those in the sandboxes that it may enter, and could open their memory.
const PROC_OF_TEMPLATE: [(&CStr, &CStr); 9] = [
    (c"self", c"/proc/self"),
    (c"cpuinfo", c"/proc/cpuinfo"),
    (c"filesystems", c"/proc/filesystems"),
    (c"loadavg", c"/proc/loadavg"),
    (c"meminfo", c"/proc/meminfo"),
    (c"stat", c"/proc/stat"),
    (c"sys", c"/proc/sys"),
    (c"uptime", c"/proc/uptime"),
    (c"version", c"/proc/version"),
];

/// What is made while the machine's files are in reach.
pub(super) struct Sources {
    proc: OwnedFd,
    /// The parts of a template's `/proc`.
    parts: [Option<OwnedFd>; PROC_OF_TEMPLATE.len()],
    sys: OwnedFd,
    /// A folder for devices, and those of the machine, if the sandbox has none of its own.
    devices: Option<(OwnedFd, [Option<OwnedFd>; DEVICES.len()])>,
}

impl Sources {
    /// Makes them.
    pub(super) fn make(attempt: &Attempt<'_>) -> Result<Self, Errno> {
        attempt.begin(Step::KernelFiles(c"proc"))?;
        let is_template = attempt.ready.role == Role::Template;
        let mut parts = [const { None }; PROC_OF_TEMPLATE.len()];
        let proc = if is_template {
            for (part, (_, path)) in parts.iter_mut().zip(PROC_OF_TEMPLATE) {
                *part = Some(again(CWD, path)?);
            }
            mounting::new(c"tmpfs", [(c"mode", c"755"), (c"size", c"64k")], NO_PROGRAMS)?
        } else {
            mounting::new(c"proc", [], NO_PROGRAMS)?
        };
        attempt.begin(Step::KernelFiles(c"sysfs"))?;
        let sys = mounting::new(c"sysfs", [], READ_ONLY)?;
        attempt.begin(Step::Devices)?;
        let devices = match &attempt.ready.devices {
            Some(_) => None,
            None => {
                let folder = mounting::new(c"tmpfs", OPTIONS_OF_DEVICES, mounting::DEVICES)?;
                fill_devices(&folder)?;
                let mut nodes = [const { None }; DEVICES.len()];
                for (node, (name, path)) in nodes.iter_mut().zip(DEVICES) {
                    *node = Some(again(CWD, path)?);
                    make_file(&folder, name)?;
                }
                Some((folder, nodes))
            }
        };
        Ok(Self { proc, parts, sys, devices })
    }

    /// Places them in the sandbox's root, with everything else that is mounted there.
    pub(super) fn place<'a>(&self, attempt: &Attempt<'a>) -> Result<(), Errno> {
        let ready = attempt.ready;
        let root = &ready.root;
        let mount = |at: &'a CStr, mount: &OwnedFd| {
            attempt.begin(Step::Mount(at))?;
            place(mount, find_or_make(root, at)?)
        };
        mount(c"proc", &self.proc)?;
        for (part, (name, _)) in self.parts.iter().zip(PROC_OF_TEMPLATE) {
            if let Some(part) = part {
                place_part(&self.proc, name, part)?;
            }
        }
        let devices = match (&self.devices, &ready.devices) {
            (Some((folder, nodes)), _) => {
                mount(c"dev", folder)?;
                for (node, (name, _)) in nodes.iter().zip(DEVICES) {
                    if let Some(node) = node {
                        place(node, find(folder, name)?)?;
                    }
                }
                folder
            }
            (None, Some(devices)) => {
                mount(c"dev", devices)?;
                devices
            }
            (None, None) => return Err(Errno::BADF),
        };
        // The machine limits the terminals of all sandboxes and containers together.
        let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"64")];
        mount(c"dev/pts", &mounting::new(c"devpts", options, mounting::DEVICES)?)?;
        mount(c"dev/mqueue", &mounting::new(c"mqueue", [], NO_PROGRAMS)?)?;
        mount(c"sys", &self.sys)?;
        self.show_groups(attempt)?;
        for memory in &ready.memory {
            let options = memory.options.iter().map(|(name, value)| (*name, &**value));
            mount(&memory.path, &mounting::new(c"tmpfs", options, memory.attributes)?)?;
        }
        // Scripts of builds may write to the files of the network, as they may with Docker.
        let is_build = matches!(ready.role, Role::Build { .. });
        let attributes = if is_build { HARMLESS } else { READ_ONLY };
        for (file, at) in &ready.files {
            let mounted = again(find(root, file)?, c"")?;
            mounting::restrict(&mounted, attributes, None)?;
            mount(at, &mounted)?;
        }
        if let Some(packages) = &ready.packages {
            mount(PACKAGES, packages)?;
        }
        // All of a template's `/proc` can only be read, and it has nothing to hide.
        if ready.role != Role::Template {
            self.make_read_only(attempt)?;
            self.hide(attempt, devices)?;
        }
        Ok(())
    }

    /// Mounts the sandbox's own groups, so that the runner and language runtimes find their limits.
    fn show_groups(&self, attempt: &Attempt<'_>) -> Result<(), Errno> {
        const GROUPS: &CStr = c"fs/cgroup";
        let shown = &attempt.groups.shown;
        let Some((first, group)) = shown.first() else { return Ok(()) };
        attempt.begin(Step::Mount(c"sys/fs/cgroup"))?;
        let target = find(&self.sys, GROUPS)?;
        shown.iter().try_for_each(|(_, group)| mounting::restrict(group, READ_ONLY, None))?;
        if first.is_empty() {
            return place(group, target);
        }
        let folder = mounting::new(c"tmpfs", [(c"mode", c"755"), (c"size", c"4k")], NO_PROGRAMS)?;
        for (name, _) in shown {
            mkdirat(&folder, &**name, Mode::from_raw_mode(0o755))?;
        }
        place(&folder, target)?;
        for (name, group) in shown {
            place(group, find(&folder, name)?)?;
        }
        mounting::restrict(&folder, MountAttrFlags::MOUNT_ATTR_RDONLY, None)
    }

    /// Mounts parts of `/proc` over themselves, read-only.
    fn make_read_only<'a>(&self, attempt: &Attempt<'a>) -> Result<(), Errno> {
        for path in &attempt.maker.read_only {
            attempt.begin(Step::ReadOnly(path))?;
            let target = match find_in(&self.proc, path) {
                Err(Errno::NOENT) => continue,
                target => target?,
            };
            let mounted = again(&target, c"")?;
            mounting::restrict(&mounted, READ_ONLY, None)?;
            place(mounted, target)?;
        }
        Ok(())
    }

    /// Mounts an empty folder over each folder that is hidden, and the null device over each file.
    fn hide(&self, attempt: &Attempt<'_>, devices: &OwnedFd) -> Result<(), Errno> {
        let hidden = &attempt.maker.hidden;
        let null = find(devices, c"null")?;
        let found = fstat(&null)?;
        let is_null = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == (1, 3);
        if !is_null {
            return Err(Errno::NODEV);
        }
        let mut empty = None;
        let all = [(&self.proc, &hidden.in_proc), (&self.sys, &hidden.in_sys)];
        for (file_system, path) in
            all.into_iter().flat_map(|(mount, paths)| paths.iter().map(move |path| (mount, path)))
        {
            attempt.begin(Step::Hide(path))?;
            let target = match find_in(file_system, path) {
                Err(Errno::NOENT) => continue,
                target => target?,
            };
            let is_folder = FileType::from_raw_mode(fstat(&target)?.st_mode) == FileType::Directory;
            match (is_folder, &empty) {
                (false, _) => place(again(&null, c"")?, target)?,
                (true, Some(empty)) => place(again(empty, c"")?, target)?,
                (true, None) => {
                    let options = [(c"mode", c"555"), (c"size", c"4k")];
                    let folder = mounting::new(c"tmpfs", options, READ_ONLY)?;
                    place(&folder, target)?;
                    empty = Some(folder);
                }
            }
        }
        Ok(())
    }
}

/// Where a set of packages is mounted, below the root.
const PACKAGES: &CStr = c".isolator/packages";

fn place_part(proc: &OwnedFd, name: &CStr, part: &OwnedFd) -> Result<(), Errno> {
    let is_folder = FileType::from_raw_mode(fstat(part)?.st_mode) == FileType::Directory;
    if is_folder {
        mkdirat(proc, name, Mode::from_raw_mode(0o755))?;
    } else {
        make_file(proc, name)?;
    }
    mounting::restrict(part, READ_ONLY, None)?;
    place(part, find(proc, name)?)
}

/// Makes an empty file, over which another one is mounted.
fn make_file(folder: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

/// Finds a path below a folder, through no link.
pub(super) fn find(folder: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    look_up(folder, path, ResolveFlags::empty())
}

/// Finds a path in a file system, and not in one that is mounted in it.
fn find_in(file_system: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    look_up(file_system, path, ResolveFlags::NO_XDEV)
}

fn look_up(folder: impl AsFd, path: &CStr, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        resolve | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(folder, path, flags, Mode::empty(), resolve)
}

/// Finds a folder below the root. What is missing of it is made: it is in a file system of the sandbox's own then, because an
/// image has its mount points.
fn find_or_make(root: &OwnedFd, path: &CStr) -> Result<OwnedFd, Errno> {
    match find(root, path) {
        Err(Errno::NOENT) => {}
        found => return found,
    }
    let mut reached = find(root, c".")?;
    for name in path.to_bytes().split(|byte| *byte == b'/') {
        match mkdirat(&reached, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        reached = openat2(&reached, name, flags, Mode::empty(), resolve)?;
    }
    Ok(reached)
}
