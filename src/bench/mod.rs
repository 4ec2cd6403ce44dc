//! Starts measured side by side: the plain Docker API, and Isolator on each of its engines through MCP
//! over standard input and output, as a host sees it.
//!
//! # Layout
//!
//! [`engines`] says what there is to measure on, and [`programs`] are run there in each [`flow`].
//! [`session`] takes one sample: from [`docker_api`], or from
//! a server that [`mcp_client`] talks to, that reads a [`settings`] file and that `rest` waits for.
//! [`schedule`] says whose turn it is. Afterwards [`throughput`] measures several requests at once.
//!
//! [`statistics`] and [`machine`] make [`results`] of the samples, which [`table`] and [`chart`]
//! show. `isolator bench` does all of it; the criterion benches use the session and keep their own
//! books.

pub mod chart;
pub mod docker_api;
pub mod engines;
mod error;
pub mod machine;
pub mod mcp_client;
pub mod programs;
mod quiescence;
pub mod results;
pub mod scenario;
pub mod schedule;
pub mod session;
pub mod settings;
pub mod statistics;
pub mod table;
pub mod throughput;

pub use error::BenchError;
