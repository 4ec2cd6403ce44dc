//! Isolator: an MCP server that runs code in a fresh, pre-warmed sandbox per request.
//!
//! # Layout
//!
//! The way of a request: [`server`] takes the call, [`calls`] does what its tool does: [`arguments`] reads it,
//! [`source`] makes a request of it, with [`snippets`] and within the operator's [`bounds`], `isolator_pool`
//! runs that in a sandbox, [`explain`] and [`report`] word the result, with the [`files`] that the program
//! left, and [`answer`] makes a message of it. [`policy`] may refuse a program before it runs, [`syntax`] asks a
//! sandbox whether one is valid, and [`progress`] tells of a run before its end. [`tools`] is what hosts see of
//! it, [`stdio`] and [`http`] how they reach it.
//!
//! What outlives a call has one of the [`handles`]: runs that are [`detached`], and [`results`] that are read
//! later. [`budget`] bounds what all requests hold. Beside the calls hosts read [`resources`], hear of
//! [`changes`], and show an [`icon`].
//!
//! [`config`] says what is allowed, [`app`] puts the parts together, [`images`] builds what
//! sandboxes are made from, [`hosts`] knows where programs that speak MCP keep their configuration,
//! and each of [`cli`]'s commands is a file in [`commands`].
//! The crate `isolator_bench` measures all of it from outside.

pub mod app;
pub mod commands;
pub mod config;
mod hex;
mod images;
mod mcp;
mod policy;
mod request;
mod result;
mod transport;
