//! The sections `pool` as they are written.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration;

/// How many sandboxes are kept ready: for all languages that don't set it, and together.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPools {
    /// How many sandboxes of each language are kept ready; 0: every start is cold. With {"min": 1, "max": 16} the number follows
    /// the calls. Default: 2.
    pub(crate) size: Option<RawSize>,
    /// Of the calls, the share that should find a sandbox ready if the number follows them. Default: 0.99.
    pub(crate) target: Option<f64>,
    /// How many of them stay thawed, which saves the time of thawing. Default: 1.
    pub(crate) hot: Option<usize>,
    /// Age at which an unused sandbox is replaced, such as "30m". Default: "1h".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(crate) max_age: Option<Duration>,
    /// Memory in MiB that the sandboxes of all languages may take together while they wait. It comes before every size.
    /// Default: no bound.
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: Option<u64>,
}

/// How many sandboxes of a language are kept ready.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPool {
    /// How many sandboxes are kept ready; 0: every start is cold. With {"min": 1, "max": 16} the number follows the calls.
    pub(crate) size: Option<RawSize>,
    /// Of the calls, the share that should find a sandbox ready if the number follows them.
    pub(crate) target: Option<f64>,
    /// How many of them stay thawed, which saves the time of thawing.
    pub(crate) hot: Option<usize>,
    /// Age at which an unused sandbox is replaced, such as "30m".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(crate) max_age: Option<Duration>,
}

/// A number of sandboxes, or the bounds of one that follows the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawSize {
    /// Always so many.
    Fixed(usize),
    /// As many as the calls need.
    Adaptive(RawRange),
}

/// The bounds of a number that follows the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawRange {
    /// At least so many are kept ready.
    pub(crate) min: usize,
    /// At most so many are kept ready.
    pub(crate) max: usize,
}

impl RawPools {
    /// What holds for each language that does not set it.
    pub(crate) fn of_each(&self) -> RawPool {
        let Self { size, target, hot, max_age, memory_mb: _ } = self;
        RawPool { size: *size, target: *target, hot: *hot, max_age: *max_age }
    }
}
