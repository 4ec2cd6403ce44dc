//! Interpreters that are started ahead of their program.
//!
//! The runner starts them and knows how (`runner/src/preload.rs`). Here is which, and which of them a
//! request should get.

use std::collections::BTreeMap;

use isolator_runner::wire;
use memchr::memmem;

pub use isolator_runner::wire::Interpreter;

use crate::engine::limits::ByteSize;
use crate::run::workspace::Workspace;

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

    /// Whether a request is likely to use one of the modules. A wrong guess costs time and nothing
    /// else, so the name of a package anywhere in the files is enough.
    pub(crate) fn suits(&self, workspace: &Workspace) -> bool {
        let package = |module: &str| module.split(['.', '/']).next().unwrap_or_default().to_owned();
        self.modules
            .iter()
            .any(|module| memmem::find(workspace.tar(), package(module).as_bytes()).is_some())
    }
}

/// What a pool knows of the interpreters in its sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreloadStatus {
    /// Memory of those that wait in one sandbox, in bytes; what they share with other sandboxes is not
    /// counted.
    pub memory: u64,
    /// Why some programs are started plainly, one sentence each.
    pub complaints: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

    #[test]
    fn a_program_that_mentions_a_package_suits() {
        let preload = Preload {
            interpreter: Interpreter::Python,
            argv: Vec::new(),
            env: BTreeMap::new(),
            modules: vec!["numpy".to_owned(), "matplotlib.pyplot".to_owned()],
            memory: ByteSize::mib(1),
        };
        let suits = |code: &str| {
            let mut workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 1, total: 1 << 20 });
            workspace.add("main.py", code.into()).unwrap();
            preload.suits(&workspace.build())
        };
        assert!(suits("import numpy as np") && suits("from matplotlib import pyplot"));
        assert!(!suits("print('hi')"));
    }
}
