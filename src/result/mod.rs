//! From the outcome of a run to what its caller is told, now or later.

pub mod detached;
pub mod explain;
pub mod files;
pub mod handles;
pub mod kept;
pub mod report;
