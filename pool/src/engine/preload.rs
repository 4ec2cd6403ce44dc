//! Interpreters that are started ahead of their program.
//!
//! Which interpreter is started, and what for. The runner knows how (`runner/src/preload.rs`).

use std::collections::BTreeMap;

use isolator_runner::wire;

pub use isolator_runner::wire::Interpreter;

use crate::engine::limits::ByteSize;

/// An interpreter that waits in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// Which one it is.
    pub interpreter: Interpreter,
    /// The command of a program without arguments; it serves programs whose command begins so.
    pub argv: Vec<String>,
    /// Variables added to the image's; it serves programs that have the same.
    pub env: BTreeMap<String, String>,
    /// Modules to import, for programs that mention one of them.
    pub modules: Vec<String>,
    /// Memory that the one with the modules may take, in addition to what a program may.
    pub memory: ByteSize,
}

impl Preload {
    pub(crate) fn message(&self, workdir: &str, with_modules: bool) -> wire::Preload {
        wire::Preload {
            interpreter: self.interpreter,
            argv: self.argv.clone(),
            env: self.env.clone(),
            workdir: workdir.to_owned(),
            modules: if with_modules { self.modules.clone() } else { Vec::new() },
            memory: self.memory.as_bytes(),
        }
    }
}

/// What became of the interpreters in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreloadStatus {
    /// Memory of those that wait in one sandbox, in bytes; what they share with other sandboxes is not
    /// counted.
    pub memory: u64,
    /// Why some programs are started plainly, one sentence each.
    pub complaints: Vec<String>,
}
