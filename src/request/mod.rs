//! From the arguments of a call to what is run in a sandbox.

pub mod arguments;
pub mod limits;
pub mod resolve;
pub mod snippets;
pub mod syntax;
pub mod wanted_files;
