//! From the outcome of a run to what its caller is told, now or later.

pub(crate) mod detached;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod kept;
pub(crate) mod report;
