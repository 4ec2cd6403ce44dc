//! Joins the launcher to a control group of the sandbox that it is making, for as long as it makes it.
//!
//! `libcontainer` does not know that group. The launcher's children are born in it; if they joined it after
//! they got a cgroup namespace, they could see the name of the group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::engine::embedded::{at, cgroups};

/// A group that the launcher has joined. It must [leave](Self::leave) it again.
#[must_use]
pub(super) struct JoinedGroup {
    home: PathBuf,
}

impl JoinedGroup {
    /// Creates the group and moves this process into it.
    pub(super) fn join(group: &Path) -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let home = cgroups::version_two_mount()?.join(own);
        fs::create_dir_all(group)?;
        move_to(group)?;
        Ok(Self { home })
    }

    /// Moves back. If that fails the launcher must end: otherwise it would be frozen and killed with the sandbox.
    pub(super) fn leave(self) -> io::Result<()> {
        move_to(&self.home)
    }
}

fn move_to(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0").map_err(at(group))
}
