//! What MCP asks of the server, and the messages that answer it.
//!
//! [`server`] takes what a host sends, and [`calls`] does what a tool does. [`tools`] and [`resources`] are what hosts
//! see, [`progress`] and [`list_changes`] what they are told without asking.

pub(crate) mod budget;
pub(crate) mod calls;
pub(crate) mod icon;
pub(crate) mod list_changes;
pub(crate) mod progress;
pub(crate) mod resources;
pub(crate) mod server;
pub(crate) mod tool_result;
pub(crate) mod tools;
