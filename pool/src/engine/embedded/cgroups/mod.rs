//! Control groups, on version 1 and 2: where they are mounted, the groups of an instance, and those of a sandbox.

mod devices;
mod group;
mod hierarchies;

pub(super) use group::{CPU_PERIOD, Cgroup, LEAST_SHARES, quota};
pub(super) use hierarchies::{
    CGROUP_MOUNT, Hierarchies, Version, favor_changes, version_two_mount,
};
