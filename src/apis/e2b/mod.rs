//! The protocol of E2B: sandboxes for agents, on sessions.
//!
//! The *control plane* creates and ends sandboxes. The *data plane* uses one: its processes and files, and its code. A sandbox is
//! a session, so it has its bounds, and is listed with the sessions of its client.

pub(crate) mod error;
pub(crate) mod registry;
mod secret;
