//! Control groups for tools that work for the server on this machine, outside of sandboxes. They are limited as builds of
//! images are.

use std::io;

use rustix::process::Pid;
use tokio::runtime::Handle;

use super::EmbeddedEngine;
use super::cgroups::Cgroup;
use super::host::Host;
use super::labels::TOOLS;
use crate::engine::ToolGroup;
use crate::engine::limits::{ByteSize, CpuShare, LimitKind, Resources};

/// The groups of one tool. They are removed with everything in them when this is dropped.
struct ToolCgroup(Cgroup);

impl ToolGroup for ToolCgroup {
    fn take_in(&self, pid: Pid) -> io::Result<()> {
        self.0.take_in(pid)
    }

    fn reached(&self) -> Option<LimitKind> {
        self.0.reached()
    }
}

impl Drop for ToolCgroup {
    fn drop(&mut self) {
        let group = self.0.clone();
        let remove = move || {
            if let Err(error) = group.remove() {
                tracing::warn!(%error, "the control group of a tool could not be removed; the end of the server tries it again");
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl EmbeddedEngine {
    /// A group with limits, if this machine has groups that this process can use.
    pub(super) async fn group_for_tool(
        &self,
        name: String,
        memory: ByteSize,
        processes: u32,
    ) -> Option<Box<dyn ToolGroup>> {
        let Ok(Host { groups: Some(groups), .. }) = &self.host else { return None };
        let cgroup = Cgroup::new(groups, &format!("{}{TOOLS}", self.instance), &name);
        let made = self.blocking(move || {
            let group = ToolCgroup(cgroup);
            group.0.make()?;
            let resources = Resources { memory, cpu: CpuShare::millis(1000) };
            group.0.limit(resources, processes, |controller| controller != "cpu")?;
            Ok(group)
        });
        match made.await {
            Ok(group) => Some(Box::new(group)),
            Err(error) => {
                tracing::debug!(%error, "a tool has no control group");
                None
            }
        }
    }
}
