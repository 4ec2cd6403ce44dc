//! The configuration: found, read strictly, overridden by the environment, and validated once.

mod check;
mod common;
mod defaults;
mod document;
mod effective;
mod environment;
mod index;
mod language;
mod load;
mod operators;
mod packages;
mod pool;
mod raw;
mod shape;
mod syntax;
mod validate;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::SandboxSpec;
use isolator_pool::engine::images::PullPolicy;
use isolator_pool::engine::limits::{ByteSize, CpuShare};
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::pools::PoolsLimits;
use isolator_pool::pool::session::{KernelCommand, kernel_path};
use isolator_pool::run::workspace::WorkspaceLimits;
use regex::Regex;

pub use effective::{Effective, Origin};
pub use index::Index;
pub(crate) use load::language_like;
pub use load::{ConfigError, NamedBy, Problem, Settings, user_directory};
pub use operators::{AdminConfig, AuditConfig, LogLevel};
pub use packages::{OnDemandConfig, PackagesConfig, SetConfig, ToolsConfig, index_key};
pub use raw::EngineKind;
pub use syntax::{Checker, SyntaxCheck, Verdicts};

use crate::policy::Policies;

/// Name of the file.
pub const FILE_NAME: &str = "isolator_config.json";

/// A validated configuration.
#[derive(Debug)]
pub struct Config {
    /// The file it came from; `None` for the defaults.
    pub file: Option<PathBuf>,
    /// Whether `--config` gave the file.
    pub is_file_chosen_on_command_line: bool,
    /// Where relative paths start.
    pub directory: PathBuf,
    /// The keys that are set.
    pub settings: Settings,
    /// Folder of the snippets. It need not exist.
    pub prompts: PathBuf,
    /// The container engine.
    pub engine: EngineConfig,
    /// When images are fetched.
    pub pull_policy: PullPolicy,
    /// The only image that the language images may start from.
    pub base_image: Option<String>,
    /// The limits for all pools together.
    pub pools: PoolsLimits,
    /// What a request can ask for.
    pub limits: RequestLimits,
    /// The languages by name.
    pub languages: BTreeMap<String, Arc<Language>>,
    /// What a run returns.
    pub results: ResultsConfig,
    /// Sandboxes that live on between calls.
    pub sessions: SessionsConfig,
    /// Sets of packages.
    pub packages: PackagesConfig,
    /// How clients reach `serve --http`.
    pub http: HttpConfig,
    /// The listener for operators.
    pub admin: AdminConfig,
    /// The log of all calls, if there is one.
    pub audit: Option<AuditConfig>,
    /// What `serve` writes to its log.
    pub log_level: LogLevel,
    /// What programs must not contain.
    pub policies: Policies,
    /// The language of the tool test_code, if it is enabled.
    pub test_code: Option<Arc<Language>>,
}

impl Config {
    /// Uses the engine that the command line names, if it names one.
    pub fn choose_engine(&mut self, kind: Option<EngineKind>) {
        if let Some(kind) = kind {
            self.engine.kind = kind;
            self.engine.is_chosen_on_command_line = true;
        }
    }

    /// How much output is captured: what the answer holds, and what can be read later.
    pub fn output_with_kept(&self) -> OutputLimits {
        let OutputLimits { head, tail, kill } = self.limits.output;
        OutputLimits { head: head.max(self.results.output), tail, kill }
    }

    /// Whether a call can take so long that its program is detached.
    pub fn detaches(&self) -> bool {
        self.longest_call() > self.results.detach_after
    }

    /// How long a call can take, including the time in the queue and for getting a sandbox.
    pub fn longest_call(&self) -> Duration {
        const SANDBOX: Duration = Duration::from_secs(60);
        self.limits.max_timeout.saturating_add(self.pools.admission.wait).saturating_add(SANDBOX)
    }
}

/// What a run returns, and how long it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultsConfig {
    /// Bytes of all files that come back from one run.
    pub files: u64,
    /// Bytes of each output stream that can be read afterwards.
    pub output: usize,
    /// How long things can be read.
    pub keep_for: Duration,
    /// How long a call waits for its program.
    pub detach_after: Duration,
}

/// Sandboxes that live on between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionsConfig {
    /// How many can be open; none if it is zero.
    pub max: usize,
    /// How many of them one client can have, if the server has several.
    pub max_per_client: usize,
    /// How long one can be unused.
    pub idle_timeout: Duration,
    /// How old one can get.
    pub max_age: Duration,
    /// Memory of all of them together.
    pub memory: ByteSize,
    /// How many cells of each can be rewound.
    pub checkpoints: u32,
    /// Bytes of what each was sent that are kept.
    pub journal: usize,
}

/// How clients reach `serve --http`.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// File of the tokens that are accepted.
    pub tokens: Option<PathBuf>,
    /// Certificate for TLS.
    pub tls: Option<TlsConfig>,
    /// Names by which clients call this machine, in addition to localhost and its address.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that can call, in addition to pages on this machine.
    pub allowed_origins: Vec<String>,
    /// Connections at the same time.
    pub max_connections: usize,
    /// Connections from one address at the same time.
    pub max_connections_per_address: usize,
    /// How long a client can read nothing of an answer.
    pub write_timeout: Duration,
    /// How long a connection can be idle between two requests.
    pub idle_timeout: Duration,
    /// How long an answer can be silent.
    pub keep_alive: Duration,
    /// How long programs can go on when the server stops.
    pub drain: Duration,
}

/// Certificate for TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// File with the certificate and its chain.
    pub certificate: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
}

/// The container engine to use.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Its kind.
    pub kind: EngineKind,
    /// Its address, if the operator gives one.
    pub host: Option<String>,
    /// Whether the embedded engine favours changes of control groups on this machine.
    pub favordynmods: bool,
    /// Whether `--engine` gave the kind.
    pub is_chosen_on_command_line: bool,
}

/// What a request can ask for.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// Run time if the request has no timeout.
    pub default_timeout: Duration,
    /// Longest run time.
    pub max_timeout: Duration,
    /// Most memory.
    pub max_memory: ByteSize,
    /// Most CPU time.
    pub max_cpu: CpuShare,
    /// Most files.
    pub files: WorkspaceLimits,
    /// Most output.
    pub output: OutputLimits,
    /// Bytes of the messages of all requests that are being received or served.
    pub in_flight: usize,
}

/// A language.
#[derive(Debug)]
pub struct Language {
    /// Its name in requests.
    pub name: String,
    /// What is in its image, in a few words.
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
    /// The interpreter that runs the cells of its sessions. Without one each cell is a program of its own.
    pub kernel: Option<Interpreter>,
    /// Its sandboxes, without the image's digest.
    pub sandbox: SandboxSpec,
    /// Its pool.
    pub pool: PoolSize,
}

impl Language {
    /// The command for a program of which `file` is the entrypoint and `sources` all files, in a sandbox with so much memory.
    pub fn argv(&self, file: &str, sources: &[String], memory: ByteSize) -> Vec<String> {
        command_line(&self.command, file, sources, memory)
    }

    /// How the kernel of a session is started in a sandbox with so much memory, if the language has one.
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

/// What stands for the size of a heap in the words of a command.
const HEAP: &str = "{heapMB}";

/// What a heap leaves of the memory, at least: for its interpreter, and for what is not on it.
const BESIDE_HEAP: u64 = 32;

/// What it leaves of much memory: this part of it.
const BESIDE_HEAP_SHARE: u64 = 16;

/// The largest heap in MiB that fits into so much memory: at least half of it.
fn heap(memory: ByteSize) -> u64 {
    let memory = memory.as_mib();
    memory.saturating_sub(BESIDE_HEAP.max(memory / BESIDE_HEAP_SHARE)).max(memory / 2)
}

/// A command for a program of which `file` is the entrypoint and `sources` all files, in a sandbox with so much memory.
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
    /// A word, as it is but for the size of the heap.
    Word(String),
    /// The entrypoint's name.
    File,
    /// The names of the entrypoint and of the sources in the same folder.
    Sources,
}

impl CommandPart {
    /// The parts of a command as the configuration writes it.
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
    /// What it means, with `$1` for the first group.
    pub advice: String,
}

/// The file's JSON schema.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(raw::RawConfig).to_value()
}

#[cfg(test)]
mod tests;
