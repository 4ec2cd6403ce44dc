//! Isolator: an MCP server that runs code in a fresh, pre-warmed sandbox per request, or per session.
//!
//! # Layout
//!
//! - [`app`] creates what every command needs: the engine, the images, the pools.
//! - [`address`] reads the addresses that a server listens at.
//! - `audit` writes a line for each call, if the operator wants that.
//! - [`commands`] has a file for each command of the command line.
//! - [`config`] reads and validates the configuration.
//! - `images` builds the language images.
//! - `local_socket` is where a server answers commands of its own user.
//! - [`log`] writes the log.
//! - `calls` serves calls of tools and commands: from their arguments to a result.
//! - `mcp` serves MCP clients: the server, its tools and resources, progress and change notifications.
//! - `metrics` counts calls, and shows operators metrics and the status of the server.
//! - `node` has the name of this server among several, and the handles with it.
//! - `packages` resolves, builds and stores sets of packages; `requirement` parses requirements.
//! - `pattern` compiles constant regular expressions.
//! - `policy` checks programs against the rules of the operator, before they run.
//! - `descriptors` plans how many files the process can have open; `reread` reads files again when they change.
//! - `request` turns the arguments of a call into a request that can run in a sandbox.
//! - `result` turns the outcome of a run into an answer, and keeps results that callers read later.
//! - `sessions` keeps the sandboxes that live on between the calls of a client.
//! - `transport` carries MCP messages: standard input and output, or HTTP.
//! - `apis` serves the APIs of other systems, next to MCP on the port for HTTP; `web` is what both have of HTTP.
//!
//! The life of a call: a transport receives it, `mcp::server` passes it to `mcp::answers`, and `calls` serves it: `request` makes a
//! job of its arguments, `policy` checks the program, and `isolator_pool` runs it in a sandbox, or in one of `sessions`.
//! `mcp::render` writes the answer. The crate `isolator_bench` measures all of this from outside.

pub mod address;
mod apis;
pub mod app;
mod audit;
mod calls;
pub mod commands;
pub mod config;
mod current;
mod descriptors;
mod duration;
mod hex;
mod images;
mod local_socket;
pub mod log;
mod mcp;
mod metrics;
mod node;
mod nodes_key;
mod notice;
mod packages;
mod pattern;
pub mod policy;
mod request;
mod requirement;
mod reread;
mod result;
mod sessions;
mod traces;
mod transport;
mod web;
