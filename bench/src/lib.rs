//! Benchmarks: starts and throughput of the plain Docker API beside those of Isolator, whose servers are
//! called through MCP over standard input and output, as a host calls them.
//!
//! # Layout
//!
//! A [`target`] is an engine to measure on, and a [`workload`] is a program to start there in each [`scenario`].
//! [`session`] takes one sample: from [`docker_api`], or from a server that [`mcp_client`] starts and calls through
//! [`stdio_client`], that reads a file which [`settings`] wrote and that `quiescence` waits for. [`schedule`] says what is sampled next.
//! Afterwards [`throughput`] measures several requests at once.
//!
//! [`statistics`] and [`machine`] make [`results`] of the samples, which [`table`] and [`chart`] show.
//!
//! [`accounting`] says which process has used the CPU time of a run.
//!
//! The binary `isolator-bench` does all of the above but the last; the benches use parts of it.

use std::env;
use std::io;
use std::path::PathBuf;

pub mod accounting;
pub mod chart;
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
pub mod stdio_client;
pub mod table;
pub mod target;
pub mod throughput;
pub mod workload;

pub use error::BenchError;

/// The `isolator` program that is measured: `ISOLATOR_BIN`, or the one that Cargo has built along with this one.
///
/// # Errors
///
/// When there is none.
pub fn isolator_program() -> io::Result<PathBuf> {
    if let Some(program) = env::var_os("ISOLATOR_BIN") {
        return Ok(program.into());
    }
    let own = env::current_exe()?;
    // Cargo puts benches into a folder below.
    let programs = own.ancestors().skip(1).take(2).map(|folder| folder.join("isolator"));
    programs.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        let text = "there is no program isolator next to this one: build it, or set ISOLATOR_BIN to its path";
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}
