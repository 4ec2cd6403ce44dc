//! How hosts reach the server: over standard input and output, or over HTTP.

pub mod http;
pub mod stdio;
