//! The control groups of a container: those that an engine such as containerd gives a pod.
//!
//! A container sees only its own groups, and they are mounted read-only. Sandboxes get theirs below, so that they stay within
//! the container's limits. Root of the machine may make the mounts writable for that, in the container alone.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use super::version::{CONTROLLERS, SERVER_GROUP, Version};
use crate::engine::embedded::at;

/// Whether the group that is mounted here is not the machine's first one: only that has, or lacks, these files.
pub(super) fn is_of_container(version: Version, mount: &Path) -> bool {
    match version {
        Version::One => !mount.join("release_agent").exists(),
        Version::Two => mount.join("cgroup.type").exists(),
    }
}

/// Makes a mount of control groups writable, if it is not.
///
/// # Errors
///
/// The kernel's, with the path.
pub(super) fn make_writable(mount: &Path) -> io::Result<()> {
    if !is_read_only(mount)? {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_remount(mount, MountFlags::BIND | flags, c"").map_err(io::Error::from).map_err(at(mount))
}

fn is_read_only(mount: &Path) -> io::Result<bool> {
    let found = statvfs(mount).map_err(io::Error::from).map_err(at(mount))?;
    Ok(found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Lets the groups below a group of version 2 have its controllers. A group that hands them on must have no processes, so those
/// of the container move into a group for them.
///
/// # Errors
///
/// The kernel's, with the path.
pub(super) fn hand_on(group: &Path) -> io::Result<()> {
    let processes = group.join("cgroup.procs");
    let found = fs::read_to_string(&processes).map_err(at(&processes))?;
    if found.is_empty() {
        // Another process of the container, such as systemd, keeps it in order.
        return Ok(());
    }
    let server = group.join(SERVER_GROUP);
    fs::create_dir_all(&server).map_err(at(&server))?;
    for process in found.lines() {
        match fs::write(server.join("cgroup.procs"), process) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            moved => moved.map_err(at(&server))?,
        }
    }
    let handed_on = group.join("cgroup.subtree_control");
    for controller in CONTROLLERS {
        fs::write(&handed_on, format!("+{controller}")).map_err(at(&handed_on))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_container_are_told_from_those_of_the_machine() {
        let mount = tempfile::tempdir().unwrap();
        let is_of_container = |version| is_of_container(version, mount.path());
        assert!(is_of_container(Version::One) && !is_of_container(Version::Two));
        fs::write(mount.path().join("release_agent"), "").unwrap();
        fs::write(mount.path().join("cgroup.type"), "domain\n").unwrap();
        assert!(!is_of_container(Version::One) && is_of_container(Version::Two));
    }

    #[test]
    fn the_processes_of_a_container_leave_its_group_before_it_hands_controllers_on() {
        let group = tempfile::tempdir().unwrap();
        let file = |name: &str| group.path().join(name);
        fs::write(file("cgroup.procs"), "1\n").unwrap();
        hand_on(group.path()).unwrap();
        assert_eq!(fs::read_to_string(file("isolator-server/cgroup.procs")).unwrap(), "1");
        assert_eq!(fs::read_to_string(file("cgroup.subtree_control")).unwrap(), "+pids");
    }

    #[test]
    fn a_container_with_an_init_system_is_left_as_it_is() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("cgroup.procs"), "").unwrap();
        hand_on(group.path()).unwrap();
        assert_eq!(fs::read_dir(group.path()).unwrap().count(), 1);
    }
}
