//! The MCP side of the server.
//!
//! [`server`] receives requests, and [`answers`] answers calls of tools: [`crate::calls`] serves them, and [`render`] writes
//! their results. [`caller`] is what a transport adds to a request. [`tools`] and [`resources`] are what hosts see, and
//! [`progress`] and [`list_changes`] send notifications.

mod answers;
pub(crate) mod caller;
pub(crate) mod icon;
mod keyed;
pub(crate) mod list_changes;
pub(crate) mod progress;
mod render;
pub(crate) mod resources;
pub(crate) mod server;
pub(crate) mod tools;
