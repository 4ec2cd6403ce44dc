//! Tests of the binary with a real engine.
//!
//! All tests are in one executable, because linking one for each file took longer than running most of them.

mod common;

mod architecture;
mod bad_input;
mod check_syntax;
mod cli;
mod config;
mod docker;
mod docs;
mod embedded;
mod execute_code;
mod files;
mod http;
mod images;
mod imports;
mod install;
mod local_server;
mod package_sets;
mod policies;
mod pool;
mod preload;
mod publishing;
mod sandbox;
mod security;
mod session_in_server;
mod test_code;
mod warm_starts;
