//! The languages: their settings, and the languages that follow from them.

mod build;
mod settings;
mod syntax;

use std::collections::BTreeMap;

use isolator_pool::engine::SandboxSpec;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::session::{KernelCommand, kernel_path};
use regex::Regex;

pub(crate) use build::language_like;
pub(super) use build::{INHERITED, build, built_in};
pub(super) use settings::{
    CPUS, LanguageSettings, MAX_MEMORY_MB, MAX_PIDS, MEMORY, MIN_MEMORY_MB, MIN_PIDS, PIDS,
};
pub use syntax::{Checker, SyntaxCheck, Verdicts};

/// A language.
#[derive(Debug)]
pub struct Language {
    /// Its name in requests.
    pub name: String,
    /// The content of its image, in a few words.
    pub description: String,
    /// Extensions of its files with the dot, the usual one first.
    pub extensions: Vec<String>,
    /// File name of a program whose request gives none.
    pub default_file: String,
    /// The program and its arguments.
    pub command: Vec<CommandPart>,
    /// Variables for its programs.
    pub env: BTreeMap<String, String>,
    /// Explanations of its error messages.
    pub hints: Vec<Hint>,
    /// How its programs are checked without running them, if that is configured.
    pub syntax: Option<SyntaxCheck>,
    /// The interpreter that runs the cells of its sessions. Without one, each cell is a separate program.
    pub kernel: Option<Interpreter>,
    /// Its sandboxes, without the image's digest.
    pub sandbox: SandboxSpec,
    /// Its pool.
    pub pool: PoolSize,
}

impl Language {
    /// The command for a program in a sandbox with this memory. `file` is its entrypoint, and `sources` are all its files.
    pub fn argv(&self, file: &str, sources: &[String], memory: ByteSize) -> Vec<String> {
        command_line(&self.command, file, sources, memory)
    }

    /// The command that starts the kernel of a session in a sandbox with this memory, if the language has one.
    pub fn kernel_command(&self, memory: ByteSize) -> Option<KernelCommand> {
        let interpreter = self.kernel?;
        let argv = |file: &str| self.argv(file, std::slice::from_ref(&file.to_owned()), memory);
        Some(KernelCommand {
            interpreter,
            argv: argv(kernel_path(interpreter)),
            waiting: argv(&self.default_file),
            env: self.env.clone(),
        })
    }
}

/// The placeholder for the size of the heap in the words of a command.
const HEAP: &str = "{heapMB}";

/// Minimum memory in MiB outside of the heap: for the interpreter, and for data that is not on the heap.
const OUTSIDE_HEAP: u64 = 32;

/// If there is much memory, this part of it is outside of the heap.
const OUTSIDE_HEAP_SHARE: u64 = 16;

/// The largest heap in MiB that fits into the memory: at least half of it.
fn heap(memory: ByteSize) -> u64 {
    let memory = memory.as_mib();
    memory.saturating_sub(OUTSIDE_HEAP.max(memory / OUTSIDE_HEAP_SHARE)).max(memory / 2)
}

/// The command for a program in a sandbox with this memory. `file` is its entrypoint, and `sources` are all its files.
pub fn command_line(
    command: &[CommandPart],
    file: &str,
    sources: &[String],
    memory: ByteSize,
) -> Vec<String> {
    // A name that begins like an option would be taken for one.
    let path = |name: &str| {
        if name.starts_with('-') { format!("./{name}") } else { name.to_owned() }
    };
    let mut argv = Vec::new();
    for part in command {
        match part {
            CommandPart::Word(word) => argv.push(word.replace(HEAP, &heap(memory).to_string())),
            CommandPart::File => argv.push(path(file)),
            CommandPart::Sources => argv.extend(sources.iter().map(|name| path(name))),
        }
    }
    argv
}

/// A part of a language's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandPart {
    /// A word, in which only the placeholder for the heap is replaced.
    Word(String),
    /// The entrypoint's name.
    File,
    /// The names of the entrypoint and of the sources in the same folder.
    Sources,
}

impl CommandPart {
    /// Reads the parts of a command.
    fn parse(words: &[String]) -> Vec<Self> {
        let part = |word: &String| match word.as_str() {
            "{file}" => Self::File,
            "{sources}" => Self::Sources,
            _ => Self::Word(word.clone()),
        };
        words.iter().map(part).collect()
    }
}

/// An explanation of an error message.
#[derive(Debug)]
pub struct Hint {
    /// Finds the message.
    pub pattern: Regex,
    /// Its explanation, with `$1` for the first group.
    pub advice: String,
}
