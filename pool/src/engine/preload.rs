//! Interpreters that are started before their program: which one, and for which programs.
//!
//! How they are started is in `runner/src/preload.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use isolator_runner::wire::{self, Wanted};

pub use isolator_runner::wire::Interpreter;

use crate::engine::limits::ByteSize;

/// An interpreter that waits in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// Which one it is.
    pub interpreter: Interpreter,
    /// The start of a command; it serves programs whose command begins like this.
    pub argv: Vec<String>,
    /// Variables added to the image's; it serves programs with the same variables.
    pub env: BTreeMap<String, String>,
    /// Modules to import, for programs that import one of them.
    pub modules: Vec<String>,
    /// Memory that the interpreter with modules may take, on top of the program's limit.
    pub memory: ByteSize,
    /// Whether it is a fork of one that the engine keeps, if the engine can do that.
    pub fork: bool,
}

impl Preload {
    pub(crate) fn message(&self, workdir: &str, modules: &[String], forked: bool) -> wire::Preload {
        wire::Preload {
            interpreter: self.interpreter,
            argv: self.argv.clone(),
            env: self.env.clone(),
            workdir: workdir.to_owned(),
            modules: modules.to_vec(),
            memory: self.memory.as_bytes(),
            forked,
        }
    }
}

/// The imports of a program that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Imported<'a> {
    /// The client that sent it.
    pub client: &'a str,
    /// Whether it had an interpreter with the modules of its language.
    pub with_modules: bool,
    /// The imports in its source.
    pub imports: &'a Imports,
    /// The CPU time that it used.
    pub cpu: Duration,
}

/// The imports of a program, if it can't notice that all of them were imported before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imports {
    /// The modules that it names, sorted.
    pub modules: Vec<String>,
    /// Names that it imports from modules, sorted, as the module, a colon, and the name. Some of these are modules themselves,
    /// as in `from scipy import stats`.
    pub parts: Vec<String>,
}

/// The waiting interpreter that a program asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Want {
    /// Which of those of its sandbox.
    pub(crate) interpreter: Wanted,
    /// For one that has just these.
    pub(crate) imports: Imports,
    /// Whether it becomes the kernel of a session.
    pub(crate) for_session: bool,
}

impl Want {
    /// One of those of its sandbox, without imports.
    pub(crate) fn only(interpreter: Wanted) -> Self {
        Self { interpreter, imports: Imports::default(), for_session: false }
    }
}

/// The interpreter that an engine may fork into a sandbox, by its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fork {
    /// It waits there for any program. The call waits for the template, if that is still being made.
    Spare {
        /// Whether it has imported the modules of its language.
        with_modules: bool,
    },
    /// A program waits for it. There is none while the template is being made.
    Awaited(AwaitedFork),
    /// It becomes the kernel of a session, which waits for it. There is none while the template is being made.
    Kernel {
        /// Whether it has imported the modules of its language.
        with_modules: bool,
    },
}

/// An interpreter for a program that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedFork {
    /// Whether the program wants the one that has imported the modules of its language.
    pub with_modules: bool,
    /// Whether the one that it wants waits in the sandbox already.
    pub is_there: bool,
    /// The program's imports. An interpreter that has imported some of them, and nothing else, serves as well.
    pub imports: Imports,
}

/// Whether an interpreter was forked into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forked {
    /// It was, and connects to the runner.
    Yes {
        /// The modules that it has imported.
        modules: Vec<String>,
    },
    /// The runner must start one, perhaps because something is wrong.
    No(Option<String>),
}

/// Maximum number of complaints that are kept.
pub(crate) const MOST_COMPLAINTS: usize = 16;

/// The state of the interpreters in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreloadStatus {
    /// Memory of the waiting interpreters of one sandbox, in bytes, without what they share with other
    /// sandboxes.
    pub memory: u64,
    /// Why some programs start without a preloaded interpreter, one sentence each.
    pub complaints: Vec<String>,
}
