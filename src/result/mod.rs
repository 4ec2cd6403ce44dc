//! Turns the outcome of a run into its answer, and keeps what callers read later.

mod absent;
pub(crate) mod cell;
pub(crate) mod context;
pub(crate) mod detached;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod forms;
pub(crate) mod handles;
pub(crate) mod kept;
pub(crate) mod media;
pub(crate) mod media_type;
pub(crate) mod missing;
mod order;
pub(crate) mod pictures;
pub(crate) mod receipt;
pub(crate) mod report;
pub(crate) mod returned;
pub(crate) mod shown;
pub(crate) mod so_far;
pub(crate) mod units;
