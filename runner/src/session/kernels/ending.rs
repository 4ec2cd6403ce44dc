//! Ends processes of a kernel, and what its cells have started.

use std::collections::HashSet;
use std::fs::File;

use rustix::process::{Pid, Signal};

use super::Kernels;
use crate::processes;

impl Kernels {
    /// Kills what was started since a cell began. `found` was there before.
    pub(in crate::session) fn kill_started(&self, found: &HashSet<Pid>) {
        let keep = found | &self.pids();
        processes::kill_all_but(&(&keep | &self.neighbours));
    }

    /// Ends all its processes. Returns the pipes that others may hold.
    pub(in crate::session) fn end(self) -> [Option<File>; 2] {
        self.checkpoints.iter().chain([&self.current]).for_each(|it| it.signal(Signal::KILL));
        self.own_pipes
    }

    /// Kills the process that is the session, and everything that was started since its first cell began. Returns whether that
    /// worked.
    pub(in crate::session) fn kill_current(&self) -> bool {
        let mut keep = self.pids();
        keep.remove(&self.current.pid);
        keep.extend(&self.neighbours);
        self.current.signal(Signal::KILL);
        let found = self.current.found.iter().flatten().filter(|pid| **pid != self.current.pid);
        keep.extend(found);
        self.current.found.is_none() || processes::kill_all_but(&keep)
    }

    /// Kills the process in which a cell does not begin. If a cell has failed to begin from its checkpoint, too, that is the state
    /// which an earlier cell has left. Then the checkpoint is killed as well if there is an older one, or no cell would ever begin.
    /// Returns whether that worked.
    pub(in crate::session) fn kill_unfit(&mut self) -> bool {
        if !self.kill_current() {
            return false;
        }
        if self.is_prepared
            && self.checkpoints.len() > 1
            && let Some(unfit) = self.checkpoints.pop()
        {
            self.is_prepared = false;
            self.current = unfit;
        }
        self.kill_current()
    }
}
