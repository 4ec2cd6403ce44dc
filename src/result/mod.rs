//! Turns the outcome of a run into its answer, and keeps what callers read later.

pub(crate) mod detached;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod kept;
pub(crate) mod report;
pub(crate) mod so_far;
