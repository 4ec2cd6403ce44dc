//! Turns the arguments of a call into a request that can run in a sandbox.

pub(crate) mod arguments;
pub(crate) mod limits;
pub(crate) mod notebook;
pub(crate) mod options;
pub(crate) mod pack;
pub(crate) mod packages;
pub(crate) mod resolve;
pub(crate) mod script;
pub(crate) mod snippets;
pub(crate) mod syntax;
pub(crate) mod understand;
pub(crate) mod values;
pub(crate) mod wanted_files;
