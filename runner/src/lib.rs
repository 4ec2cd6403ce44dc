//! What the server and the runner agree on.
//!
//! The runner is a small static program that waits inside every sandbox. It is reached over one
//! byte stream; [`wire`] is the language of that stream. [`place`] says where the runner and its files
//! are in a sandbox. Both ends are built from the same definitions. The program itself is in `main.rs`
//! and the modules beside it.

pub mod place;
pub mod wire;
