//! The definitions that the server and the runner share.
//!
//! The runner is a small static program that waits inside every sandbox. The server talks to it over one
//! byte stream, in the protocol of [`wire`]. [`fork`] is the protocol of interpreters that are forked into sandboxes. [`paths`] says where the runner and its files are in a sandbox.
//! With [`inherited`], both make sure that a program gets no blocked or ignored signals.
//! The program itself is `main.rs` with its modules.

pub mod fork;
pub mod inherited;
pub mod paths;
pub mod wire;
