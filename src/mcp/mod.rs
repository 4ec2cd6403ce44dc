//! What MCP asks of the server, and the messages that answer it.
//!
//! [`server`] takes what a host sends, and [`calls`] does what a tool does. [`tools`] and [`resources`] are what hosts
//! see, [`progress`] and [`list_changes`] what they are told without asking.

pub mod budget;
pub mod calls;
pub mod icon;
pub mod list_changes;
pub mod progress;
pub mod resources;
pub mod server;
pub mod tool_result;
pub mod tools;
