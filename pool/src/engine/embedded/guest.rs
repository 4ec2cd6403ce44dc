//! The launcher as a guest in a control group of the sandbox that it makes: `libcontainer` knows nothing of
//! that group, and what the launcher forks is in it from the beginning. Later would be too late: a process
//! sees the name of a group that it enters after it has got a view of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cgroup;

/// Where the launcher goes back to.
#[must_use]
pub(super) struct Guest {
    home: PathBuf,
}

impl Guest {
    /// Makes the group and enters it.
    pub(super) fn enter(group: &Path) -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let home = cgroup::second_version()?.join(own);
        fs::create_dir_all(group)?;
        go(group)?;
        Ok(Self { home })
    }

    /// Goes back. Who can't may not go on: it would be frozen and killed with the sandbox.
    pub(super) fn leave(self) -> io::Result<()> {
        go(&self.home)
    }
}

fn go(group: &Path) -> io::Result<()> {
    let moved = fs::write(group.join("cgroup.procs"), "0");
    moved.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", group.display())))
}
