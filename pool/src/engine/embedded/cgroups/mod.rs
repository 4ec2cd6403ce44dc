//! Control groups, on version 1 and 2: where they are mounted, the groups of an instance, and those of a sandbox.

mod container;
mod devices;
mod group;
mod hierarchies;
mod make;
mod plan;
mod version;

pub(super) use group::{CPU_PERIOD, Cgroup, quota};
pub(super) use hierarchies::{Hierarchies, favor_changes, version_two_mount};
pub(super) use make::{MadeGroups, OpenGroups};
pub(super) use plan::{GroupLimits, GroupPlan};
pub(super) use version::Version;
