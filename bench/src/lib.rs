//! Benchmarks: starts and throughput of the plain Docker API beside those of Isolator, whose servers are
//! called through MCP over standard input and output, as a host calls them.
//!
//! # Layout
//!
//! A [`target`] is an engine to measure on, and a [`workload`] is a program to start there in each [`scenario`].
//! [`session`] takes one sample: from [`docker_api`], or from a server that [`mcp_client`] talks to, that
//! reads a file which [`settings`] wrote and that `quiescence` waits for. [`schedule`] says what is sampled next.
//! Afterwards [`throughput`] measures several requests at once.
//!
//! [`statistics`] and [`machine`] make [`results`] of the samples, which [`table`] and [`chart`] show. [`curves`] is
//! the chart of `isolator tune`.
//!
//! The crate knows nothing of Isolator's configuration or command line. `isolator bench` makes targets and
//! workloads from them and does all of the above; the criterion benches use parts of it.

pub mod chart;
pub mod curves;
pub mod docker_api;
mod error;
pub mod load;
pub mod machine;
pub mod mcp_client;
mod quiescence;
pub mod results;
pub mod scenario;
pub mod schedule;
pub mod session;
pub mod settings;
pub mod statistics;
pub mod table;
pub mod target;
pub mod throughput;
pub mod workload;

pub use error::BenchError;
