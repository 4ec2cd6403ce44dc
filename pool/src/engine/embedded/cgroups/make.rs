//! Makes the control groups of sandboxes, in a launcher.
//!
//! The groups of an instance stay open, so that no path is looked up for a sandbox. What a sandbox joins is opened here, by a
//! process that may: the one that joins has given up its rights by then.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, open, openat, unlinkat};
use rustix::io::{Errno, write};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::devices;
use super::plan::{GroupPlan, Limit, PlannedGroup};
use super::version::{CONTROLLERS, Version};
use crate::engine::embedded::at;

/// Every user can enter a group.
const MODE: Mode =
    Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The groups of instances that are open, by their paths.
#[derive(Default)]
pub(crate) struct OpenGroups(HashMap<PathBuf, OwnedFd>);

/// The groups of a sandbox that is being made.
#[derive(Default)]
pub(crate) struct MadeGroups {
    /// The files by which a process joins them, with version 1.
    pub(crate) joined: Vec<OwnedFd>,
    /// The group of version 2, in which a process can be born.
    pub(crate) born_in: Option<OwnedFd>,
    /// Mounts of the groups that the sandbox can read, and their names there.
    pub(crate) shown: Vec<(CString, OwnedFd)>,
    /// Where to remove them.
    made: Vec<PathBuf>,
}

impl OpenGroups {
    /// Makes the groups of a plan with their limits.
    ///
    /// # Errors
    ///
    /// The kernel's, with the path. Then none of the groups is left.
    pub(crate) fn make(&mut self, plan: &GroupPlan) -> io::Result<MadeGroups> {
        let mut made = MadeGroups::default();
        match self.try_make(plan, &mut made) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    fn try_make(&mut self, plan: &GroupPlan, made: &mut MadeGroups) -> io::Result<()> {
        let (Some(instance), Some(name)) = (plan.path.parent(), plan.path.file_name()) else {
            return Err(io::Error::other("the path of a control group has no parent"));
        };
        for group in &plan.groups {
            let path = group.mount.join(&plan.path);
            let mut parent = self.instance(group, instance)?;
            let mut is_made = mkdirat(parent, name, MODE);
            if is_made == Err(Errno::NOENT) {
                // The last sandbox of an instance takes the instance's group with it.
                self.0.remove(&group.mount.join(instance));
                parent = self.instance(group, instance)?;
                is_made = mkdirat(parent, name, MODE);
            }
            is_made.map_err(io::Error::from).map_err(at(&path))?;
            made.made.push(path.clone());
            let directory = openat(parent, name, DIRECTORY, Mode::empty());
            let directory = directory.map_err(io::Error::from).map_err(at(&path))?;
            group.limits.iter().try_for_each(|limit| {
                set(directory.as_fd(), limit).map_err(at(&path.join(&limit.file)))
            })?;
            for shown in &group.shown {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_EMPTY_PATH;
                made.shown
                    .push((CString::new(shown.as_str())?, open_tree(&directory, c"", flags)?));
            }
            match group.version {
                Version::One => made.joined.push(processes(directory.as_fd()).map_err(at(&path))?),
                Version::Two => made.born_in = Some(directory),
            }
        }
        if let Some(devices) = &plan.devices {
            let path = devices.join(instance);
            let group = match self.0.get(&path) {
                Some(group) => group,
                None => self.devices(devices, instance)?,
            };
            made.joined.push(processes(group.as_fd()).map_err(at(&path))?);
        }
        Ok(())
    }

    /// The group of an instance, which is made if it is not there.
    fn instance(&mut self, group: &PlannedGroup, instance: &Path) -> io::Result<BorrowedFd<'_>> {
        let path = group.mount.join(instance);
        if !self.0.contains_key(&path) {
            let (directory, is_new) = make_all(group, instance)?;
            if is_new && group.version == Version::Two {
                devices::restrict_or_warn(&path);
            }
            self.0.insert(path.clone(), directory);
        }
        Ok(self.0[&path].as_fd())
    }

    /// The group of an instance that has the rules for devices of version 1.
    fn devices(&mut self, mount: &Path, instance: &Path) -> io::Result<&OwnedFd> {
        let group = PlannedGroup {
            mount: mount.to_owned(),
            version: Version::One,
            limits: Vec::new(),
            shown: Vec::new(),
        };
        let (directory, _) = make_all(&group, instance)?;
        let path = mount.join(instance);
        let list = path.join("devices.list");
        let list = fs::read_to_string(&list).map_err(at(&list))?;
        for limit in devices::rules(&list) {
            set(directory.as_fd(), &limit).map_err(at(&path))?;
        }
        Ok(self.0.entry(path).or_insert(directory))
    }
}

/// Makes a group and those above it. Returns whether it was not there.
fn make_all(group: &PlannedGroup, path: &Path) -> io::Result<(OwnedFd, bool)> {
    let mut reached = group.mount.clone();
    let failed = |path: &Path, error: Errno| at(path)(error.into());
    let mut directory =
        open(&reached, DIRECTORY, Mode::empty()).map_err(|error| failed(&reached, error))?;
    let mut is_new = false;
    for name in path {
        if group.version == Version::Two {
            enable(directory.as_fd());
        }
        reached.push(name);
        is_new = match mkdirat(&directory, name, MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed(&reached, error)),
        };
        directory = openat(&directory, name, DIRECTORY, Mode::empty())
            .map_err(|error| failed(&reached, error))?;
    }
    if group.version == Version::Two {
        enable(directory.as_fd());
    }
    Ok((directory, is_new))
}

/// Lets a group of version 2 hand on the controllers that limit sandboxes. One that can't be enabled can't limit, which was
/// reported before, or its limit fails.
fn enable(group: BorrowedFd<'_>) {
    let Ok(file) = open_file(group, "cgroup.subtree_control") else { return };
    for controller in CONTROLLERS {
        let _ = write(&file, format!("+{controller}").as_bytes());
    }
}

fn set(group: BorrowedFd<'_>, limit: &Limit) -> io::Result<()> {
    match open_file(group, &limit.file) {
        Err(Errno::NOENT) if limit.is_optional => Ok(()),
        file => Ok(write(&file?, limit.value.as_bytes()).map(|_| ())?),
    }
}

fn processes(group: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(open_file(group, "cgroup.procs")?)
}

fn open_file(group: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    openat(group, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

impl MadeGroups {
    /// Removes the groups of a sandbox that was not made. What stays is found and removed by the server.
    pub(crate) fn remove(self) {
        for path in &self.made {
            let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
        }
    }
}
