//! The plan of a sandbox's control groups, which the server makes and a launcher carries out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::hierarchies::{Hierarchies, V2_FREEZER};
use super::version::{CONTROLLERS, Version};

/// The smallest share of CPU time, in the measures of version 1 and 2.
const LEAST_SHARES: [&str; 2] = ["2", "1"];

/// The limits of a sandbox's groups. Without one, its controller limits nothing.
#[derive(Debug, Default)]
pub(crate) struct GroupLimits {
    /// Bytes of memory, without swap.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) processes: Option<u32>,
    /// Microseconds of CPU time in each [`CPU_PERIOD`](super::CPU_PERIOD).
    pub(crate) quota: Option<u64>,
    /// Whether it gets CPU time only when no other group needs it.
    pub(crate) gives_way: bool,
}

/// Control groups to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupPlan {
    /// Their path below each mount.
    pub(crate) path: PathBuf,
    /// One for each hierarchy.
    pub(crate) groups: Vec<PlannedGroup>,
    /// Where the controller for devices of version 1 is mounted. All sandboxes of an instance share its group there.
    pub(crate) devices: Option<PathBuf>,
}

/// A control group to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedGroup {
    /// Where its hierarchy is mounted.
    pub(crate) mount: PathBuf,
    /// The hierarchy's version.
    pub(crate) version: Version,
    /// The files to write, in this order.
    pub(crate) limits: Vec<Limit>,
    /// The folders in the sandbox in which it can read the group, below where control groups are mounted.
    pub(crate) shown: Vec<String>,
}

/// A file of a control group, and its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) file: String,
    pub(crate) value: String,
    /// Whether there are kernels without the file, which then limit nothing.
    pub(crate) is_optional: bool,
}

impl GroupPlan {
    pub(super) fn new(hierarchies: &Hierarchies, path: PathBuf, limits: &GroupLimits) -> Self {
        let group = |(controllers, mount): &(String, PathBuf)| {
            let mut group = PlannedGroup {
                mount: mount.clone(),
                version: hierarchies.version,
                limits: Vec::new(),
                shown: Vec::new(),
            };
            match hierarchies.version {
                Version::Two => {
                    group.limits = limits.of_version_two();
                    group.shown.push(String::new());
                }
                Version::One if controllers == V2_FREEZER => group.version = Version::Two,
                Version::One => {
                    for controller in CONTROLLERS {
                        if controllers.split(',').any(|name| name == controller) {
                            group.limits.extend(limits.of_version_one(controller));
                            group.shown.push(controller.to_owned());
                        }
                    }
                }
            }
            group
        };
        let groups = hierarchies.mounts.iter().map(group).collect();
        Self { path, groups, devices: hierarchies.devices.clone() }
    }
}

impl GroupLimits {
    fn of_version_two(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        if let Some(memory) = self.memory {
            limits.push(Limit::new("memory.max", memory));
            limits.push(Limit::new("memory.swap.max", 0).optional());
        }
        limits.extend(self.processes.map(|most| Limit::new("pids.max", most)));
        if let Some(quota) = self.quota {
            let period = super::CPU_PERIOD.as_micros();
            limits.push(Limit::new("cpu.max", format!("{quota} {period}")));
            limits.push(Limit::new("cpu.max.burst", quota).optional());
        }
        if self.gives_way {
            limits.push(Limit::new("cpu.weight", LEAST_SHARES[1]).optional());
        }
        limits
    }

    fn of_version_one(&self, controller: &str) -> Vec<Limit> {
        let mut limits = Vec::new();
        match controller {
            "memory" => {
                if let Some(memory) = self.memory {
                    limits.push(Limit::new("memory.limit_in_bytes", memory));
                    // Memory and swap together: no swap is added.
                    limits.push(Limit::new("memory.memsw.limit_in_bytes", memory).optional());
                    // Some kernels count socket buffers only if they have a limit of their own.
                    limits.push(Limit::new("memory.kmem.tcp.limit_in_bytes", memory).optional());
                }
            }
            "pids" => limits.extend(self.processes.map(|most| Limit::new("pids.max", most))),
            _ => {
                if self.gives_way {
                    limits.push(Limit::new("cpu.shares", LEAST_SHARES[0]));
                }
                // The period is the kernel's default.
                if let Some(quota) = self.quota {
                    limits.push(Limit::new("cpu.cfs_quota_us", quota));
                    limits.push(Limit::new("cpu.cfs_burst_us", quota).optional());
                }
            }
        }
        limits
    }
}

impl Limit {
    fn new(file: &str, value: impl ToString) -> Self {
        Self { file: file.to_owned(), value: value.to_string(), is_optional: false }
    }

    fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}
