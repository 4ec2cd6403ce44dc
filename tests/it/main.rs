//! What the binary does, against a real engine.
//!
//! All tests are in one executable, because linking one for each file took longer than running most of them.

mod common;

mod bad_input;
mod check_syntax;
mod cli;
mod config;
mod docker;
mod docs;
mod embedded;
mod execute_code;
mod files;
mod hits;
mod http;
mod images;
mod install;
mod packages;
mod policies;
mod pool;
mod preload;
mod rooms;
mod sandbox;
mod security;
mod sets;
mod test_code;
