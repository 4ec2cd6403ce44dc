//! How hosts reach the server: over standard input and output, or over HTTP.

pub(crate) mod agent_check;
pub(crate) mod http;
pub(crate) mod message;
pub(crate) mod stdio;
