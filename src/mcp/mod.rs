//! The MCP side of the server.
//!
//! [`server`] receives requests, and [`calls`] runs the tools. [`tools`] and [`resources`] are what hosts see, and
//! [`progress`] and [`list_changes`] send notifications.

pub(crate) mod budget;
pub(crate) mod calls;
pub(crate) mod icon;
pub(crate) mod list_changes;
pub(crate) mod progress;
pub(crate) mod resources;
pub(crate) mod server;
mod session_answers;
pub(crate) mod tool_result;
pub(crate) mod tools;
