//! What the server and the runner agree on.
//!
//! The runner is a small static program that waits inside every sandbox. It is reached over one
//! byte stream; [`wire`] is the language of that stream, and the only thing that this library
//! holds, so that both ends are built from the same definitions. The program itself is in
//! `main.rs` and the modules beside it.

pub mod wire;
