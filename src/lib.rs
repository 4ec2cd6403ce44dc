//! Isolator: an MCP server that runs code in a fresh, pre-warmed sandbox per request.
//!
//! # Layout
//!
//! The way of a request: [`server`] takes the call, [`arguments`] reads it, [`source`] makes a
//! request of it (with [`snippets`]), `isolator_pool` runs that in a sandbox, [`explain`] and
//! [`report`] word the result, [`progress`] tells of it before. [`tool`] is what hosts see of it, [`stdio`] and [`http`] how they reach it,
//! and [`budget`] bounds what all requests hold.
//! [`report`] word the result. [`policy`] may refuse a program before it runs, and [`syntax`] asks a
//! sandbox whether one is valid. [`tools`] is what hosts see of it, [`stdio`] how they reach it.
//! [`resources`] is what they can read beside that, [`changes`] tells them what is not as it was, and
//! [`icon`] is what they show.
//!
//! [`config`] says what is allowed, [`app`] puts the parts together, [`images`] builds what
//! sandboxes are made from, [`hosts`] knows where programs that speak MCP keep their configuration,
//! and each of [`cli`]'s commands is a file in [`commands`].
//! [`bench`](mod@bench) measures all of it from outside.

pub mod app;
pub mod arguments;
pub mod bench;
pub mod budget;
pub mod changes;
pub mod cli;
pub mod commands;
pub mod config;
pub mod explain;
pub mod hosts;
pub mod http;
pub mod icon;
pub mod images;
pub mod policy;
pub mod progress;
pub mod report;
pub mod resources;
pub mod server;
pub mod snippets;
pub mod source;
pub mod stdio;
pub mod syntax;
pub mod tools;
