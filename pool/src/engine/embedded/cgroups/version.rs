//! The versions of control groups, and the names that both have in common.

use serde::{Deserialize, Serialize};

/// The group that the server moves itself into if its own group was delegated to it.
pub(super) const SERVER_GROUP: &str = "isolator-server";

/// The controllers that limit sandboxes.
pub(super) const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// The version of the groups that limit sandboxes. Where both are mounted, that is version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Version {
    One,
    Two,
}
