//! The configuration file as it is written: every key, before it is validated.
//!
//! The top-level keys are those of isolator-mcp, so that its files work unchanged; the sections are
//! Isolator's own. A missing key is `None` here; the validation supplies the default. The doc comments become the
//! descriptions in `isolator config schema`.

mod packages;
mod pool;

use std::collections::BTreeMap;
use std::time::Duration;

pub(super) use packages::{RawIndex, RawOnDemand, RawPackageTools, RawPackages, RawSet};
pub(super) use pool::{RawPool, RawPools, RawRange, RawSize};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::defaults::{MAX_MEMORY_MB, MAX_PIDS, MAX_REFILLS, MIN_MEMORY_MB, MIN_PIDS};
use super::operators::{RawAdmin, RawAudit, RawLog};
use crate::duration::UNITS;

/// `isolator_config.json`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Isolator configuration")]
pub(super) struct RawConfig {
    /// Where an editor finds the schema of this file. Ignored by Isolator.
    #[serde(rename = "$schema")]
    pub(super) schema: Option<String>,
    /// The program that isolator-mcp called. Accepted and ignored.
    pub(super) isolator_path: Option<String>,
    /// How long a program can run if the request has no timeout, in seconds. Default: 60.
    pub(super) default_timeout_seconds: Option<f64>,
    /// Memory of a sandbox in MiB, including its files. Default: 256.
    #[serde(rename = "defaultMemoryMB")]
    #[schemars(range(min = MIN_MEMORY_MB, max = MAX_MEMORY_MB))]
    pub(super) default_memory_mb: Option<u64>,
    /// CPU time of a sandbox, in cores. Default: 0.5.
    pub(super) default_cpus: Option<f64>,
    /// How many processes and threads a sandbox can have. Default: 64.
    #[schemars(range(min = MIN_PIDS, max = MAX_PIDS))]
    pub(super) default_pids_limit: Option<u32>,
    /// Network of a sandbox: "none", "bridge", or the name of a Docker network. The embedded engine only
    /// knows "none". Default: "none".
    pub(super) default_network_mode: Option<String>,
    /// Capabilities that Docker takes from a sandbox; the embedded engine always takes all.
    /// Default: ["ALL"].
    pub(super) default_cap_drop: Option<Vec<String>>,
    /// Whether a program can write only to its working directory, /tmp and /dev/shm. Default: true.
    #[serde(rename = "defaultReadOnlyRootfs")]
    pub(super) default_read_only_rootfs: Option<bool>,
    /// The working directory: where a request's files are put and where the program starts.
    /// Default: "/workspace".
    pub(super) default_container_workdir: Option<String>,
    /// The languages. For built-in ones, set only what should differ.
    #[serde(default)]
    pub(super) language_settings: BTreeMap<String, RawLanguage>,
    /// Folder of the snippets, relative to this file. Default: "./prompts".
    pub(super) prompts_dir: Option<String>,
    /// The engine that makes the sandboxes.
    #[serde(default)]
    pub(super) engine: RawEngine,
    /// When images are built or pulled.
    #[serde(default)]
    pub(super) images: RawImages,
    /// How many sandboxes are kept ready, for languages that don't set it, and together.
    #[serde(default)]
    pub(super) pool: RawPools,
    /// How many requests run at the same time, and how many wait.
    #[serde(default)]
    pub(super) requests: RawRequests,
    /// The most that a request can ask for.
    #[serde(default)]
    pub(super) limits: RawLimits,
    /// What a run returns, and how long it is kept.
    #[serde(default)]
    pub(super) results: RawResults,
    /// Sessions: sandboxes that live on between calls.
    #[serde(default)]
    pub(super) sessions: RawSessions,
    /// Sets of packages, which programs can import from in addition to what their image has.
    #[serde(default)]
    pub(super) packages: RawPackages,
    /// How clients reach `serve --http`.
    #[serde(default)]
    pub(super) http: RawHttp,
    /// The listener for operators.
    #[serde(default)]
    pub(super) admin: RawAdmin,
    /// The audit log.
    #[serde(default)]
    pub(super) audit: RawAudit,
    /// The log of the server itself, on standard error.
    #[serde(default)]
    pub(super) log: RawLog,
    /// What programs must not contain.
    #[serde(default)]
    pub(super) policies: RawPolicies,
    /// The tools besides execute_code.
    #[serde(default)]
    pub(super) tools: RawTools,
}

/// What a run returns, and how long it is kept.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawResults {
    /// How large the files that come back from one run can be together, in KiB, including pictures; 0: none.
    /// Default: 10240.
    #[serde(rename = "maxFilesKB")]
    pub(super) max_files_kb: Option<u64>,
    /// How much of each output stream, from its beginning, can be read later if it is too long for the answer,
    /// in KiB; 0: nothing. Default: 8192.
    #[serde(rename = "keptOutputKB")]
    pub(super) kept_output_kb: Option<u64>,
    /// How long files, output and the results of long runs can be read. Default: "10m".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) keep_for: Option<Duration>,
    /// How long a call waits for its program before it is answered with a handle, unless its caller says that it
    /// waits for the end. Default: "45s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) detach_after: Option<Duration>,
}

/// Sessions: sandboxes that live on between calls, for one client each.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSessions {
    /// How many sessions can be open; 0: none, and their tools are not offered. Default: 32.
    pub(super) max: Option<usize>,
    /// How many of them one HTTP client can have. Default: three quarters.
    pub(super) max_per_client: Option<usize>,
    /// How long a session can be unused before it ends, unless its client asks for less. Default: "30m".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) idle_timeout: Option<Duration>,
    /// The age at which a session ends, even if it is used. Default: "8h".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) max_age: Option<Duration>,
    /// Memory of all sessions together, in MiB. If they take more, the one that was unused longest ends. Default: 4096.
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    /// How many cells of a Python session can be rewound; 0: none, and a cell that fails badly ends its session. Each
    /// checkpoint is a process, which shares its memory. Default: 8.
    pub(super) checkpoints: Option<u32>,
    /// How much of what a session was sent is kept to be run again when it is lost, in KiB; 0: nothing. Default: 256.
    #[serde(rename = "journalKB")]
    pub(super) journal_kb: Option<usize>,
}

/// How clients reach `serve --http`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawHttp {
    /// File with the accepted tokens, one a line as `isolator token` prints it, relative to this file. Read
    /// again when it changes. Without it, only clients on this machine are served.
    pub(super) tokens: Option<String>,
    /// Certificate for TLS.
    pub(super) tls: Option<RawTls>,
    /// Names by which clients call this machine, with or without a port, in addition to localhost and its
    /// address. Requests for other names are refused.
    pub(super) allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that can call, in addition to pages on this machine, such as
    /// "https://agent.example:443".
    pub(super) allowed_origins: Option<Vec<String>>,
    /// How many connections can be open; others are refused. Default: 1024, or fewer if file descriptors are few.
    pub(super) max_connections: Option<usize>,
    /// How many of them can come from one address, which several clients behind a proxy share. Others are closed.
    /// Default: three quarters.
    pub(super) max_connections_per_address: Option<usize>,
    /// How long a client can read nothing of an answer before its connection is closed. Default: "30s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) write_timeout: Option<Duration>,
    /// How long a connection can be idle between two requests before it is closed. A proxy in front of the server
    /// must close it sooner. Default: "75s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) idle_timeout: Option<Duration>,
    /// How long an answer can be silent. Then a comment is sent, so that no proxy takes the connection for dead.
    /// Default: "15s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) keep_alive: Option<Duration>,
    /// How long programs can go on when the server stops. Default: "10s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) drain: Option<Duration>,
}

/// Certificate for TLS.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTls {
    /// File with the certificate and its chain in PEM, relative to this file.
    pub(super) certificate: String,
    /// File with the certificate's private key in PEM, relative to this file.
    pub(super) key: String,
}

/// One language.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawLanguage {
    /// Whether requests can use the language. Default: true.
    pub(super) enabled: Option<bool>,
    /// Image of its sandboxes: any with a Linux userland.
    pub(super) image: Option<String>,
    /// A few words for the model about what is in the image.
    pub(super) description: Option<String>,
    /// Extensions of its files, the usual one first, such as [".py"].
    pub(super) extensions: Option<Vec<String>>,
    /// File name of a program whose request gives none, such as "main.py".
    pub(super) default_file: Option<String>,
    /// The command that runs a program. "{file}" stands for the program's file; "{sources}" for that file
    /// and the request's other files with the language's extensions in the same folder. "{heapMB}", also in a
    /// word, stands for the largest heap in MiB that fits into the request's memory. The request's arguments
    /// follow.
    pub(super) command: Option<Vec<String>>,
    /// Environment variables for its programs.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// User and group of its programs, as numbers; not root. Default: "1000:1000".
    pub(super) user: Option<String>,
    /// Memory of a sandbox in MiB, including its files; overrides the default.
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    /// CPU time of a sandbox in cores; overrides the default.
    pub(super) cpus: Option<f64>,
    /// How many processes and threads a sandbox can have; overrides the default.
    pub(super) pids_limit: Option<u32>,
    /// Size of the working directory in MiB, which is part of the memory. Default: a quarter of it.
    #[serde(rename = "workspaceMB")]
    pub(super) workspace_mb: Option<u64>,
    /// Size of /tmp in MiB, which is part of the memory. Default: a quarter of it.
    #[serde(rename = "tmpMB")]
    pub(super) tmp_mb: Option<u64>,
    /// How many of its sandboxes are kept ready.
    #[serde(default)]
    pub(super) pool: RawPool,
    /// The interpreter that is started before its program comes.
    #[serde(default)]
    pub(super) preload: RawPreload,
    /// Advice that is added to known error messages.
    pub(super) hints: Option<Vec<RawHint>>,
    /// How check_syntax checks a program of this language without running it. Built-in languages have a check.
    pub(super) syntax_check: Option<RawSyntaxCheck>,
}

/// How check_syntax checks a program: with a checker that comes with Isolator, or with a command in the image.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSyntaxCheck {
    /// A checker that comes with Isolator; the language's command must run that interpreter.
    pub(super) checker: Option<RawInterpreter>,
    /// A command in the image that checks the syntax. "{file}" stands for the file with the code, which has the
    /// language's default name.
    pub(super) command: Option<Vec<String>>,
    /// Regular expression that finds the error in what the command prints when its exit code is not 0. It
    /// needs a group "error", and can have groups "line" and "offset". Without a pattern the command
    /// must print {"valid": true} or {"valid": false, "error": …, "line": …, "offset": …}.
    pub(super) pattern: Option<String>,
}

/// An interpreter that is started before its program comes. Programs that would notice get a new interpreter:
/// those whose file has another name, that set variables, or whose files could replace a module.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPreload {
    /// Whether an interpreter is preloaded. Default: true if one is named.
    pub(super) enabled: Option<bool>,
    /// The interpreter that the language's command starts.
    pub(super) interpreter: Option<RawInterpreter>,
    /// Modules that a second interpreter imports, for programs that import one of them. Default for
    /// Python: ["numpy", "pandas"]; for JavaScript: none.
    pub(super) modules: Option<Vec<String>>,
    /// Memory in MiB that the interpreter with the modules can take. A sandbox in which it waits gets what it
    /// really takes in addition to its own. An interpreter that takes more is not used. Default: 128.
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    /// Whether the interpreters in sandboxes are forks of one that is kept, where the engine can do that. Forks start sooner
    /// and share memory, so that programs can measure a little of what others do. Default: true.
    pub(super) fork: Option<bool>,
}

/// An interpreter that can be preloaded.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawInterpreter {
    /// CPython, or another that imports `sitecustomize`.
    Python,
    /// Node.js.
    Node,
}

/// Advice for an error message.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawHint {
    /// Regular expression that finds the message on standard error.
    pub(super) pattern: String,
    /// What the message means and what to do. $1 stands for the first group.
    pub(super) advice: String,
}

/// The engine that makes the sandboxes.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEngine {
    /// Which engine makes the sandboxes. Default: "auto".
    pub(super) kind: Option<EngineKind>,
    /// Address of the Docker engine, in the form of DOCKER_HOST. Default: DOCKER_HOST, the docker context,
    /// or one of the usual sockets.
    pub(super) host: Option<String>,
    /// Whether programs may run where the engine can't limit their memory, CPU time or processes. Each answer then
    /// says which limits did not hold. Default: false.
    pub(super) allow_unlimited: Option<bool>,
    /// Another OCI runtime for Docker, such as "runsc". Default: the engine's own.
    pub(super) runtime: Option<String>,
    /// Whether the embedded engine, as root, tells the kernel to favour changes of control groups, which makes
    /// sandboxes sooner. It holds for the whole machine. Default: true.
    pub(super) favordynmods: Option<bool>,
}

/// A kind of engine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Docker if it answers, otherwise the embedded engine.
    Auto,
    /// A Docker engine, or another with the same API.
    Docker,
    /// Isolator makes the sandboxes itself.
    Embedded,
}

impl EngineKind {
    /// Its name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }
}

/// When images are built or pulled.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawImages {
    /// When images are built or pulled. Default: "missing".
    pub(super) policy: Option<RawPolicy>,
    /// The image that the language images are built from, best with a digest: "debian@sha256:…". "isolator/base" is
    /// always made from Debian's signed packages. Default: isolator/base or debian:trixie-slim, whichever is there.
    pub(super) base: Option<String>,
}

/// When images are built or pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPolicy {
    /// If they are missing.
    Missing,
    /// Never.
    Never,
    /// Whenever the server starts.
    Always,
}

/// How many requests run at the same time, and how many wait.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawRequests {
    /// How many programs run at the same time. Default: 8.
    pub(super) max_running: Option<usize>,
    /// How many of them can belong to one HTTP client. Default: three quarters.
    pub(super) max_running_per_client: Option<usize>,
    /// Size of the messages of all requests that are being received or served, in MiB, of which one HTTP client can
    /// have half. The server takes up to four times as much memory for them. Default: 128.
    #[serde(rename = "maxInFlightMB")]
    pub(super) max_in_flight_mb: Option<usize>,
    /// How many requests can wait for a slot. Default: 256.
    pub(super) max_queue: Option<usize>,
    /// How long a request can wait for a slot. Default: "30s".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) queue_timeout: Option<Duration>,
    /// How many sandboxes are created at the same time, for all pools together. Default: 2.
    #[schemars(range(min = 1, max = MAX_REFILLS))]
    pub(super) refills: Option<usize>,
}

/// What programs must not contain. A policy is a file of rules in ast-grep's format. "strict", for Python,
/// comes with Isolator.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPolicies {
    /// Folder of your own policies, relative to this file: NAME.yml is the policy NAME. Default: none.
    pub(super) folder: Option<String>,
    /// The policies for the programs of each language, such as {"python": ["strict"]}. Default: none.
    #[serde(default)]
    pub(super) apply: BTreeMap<String, Vec<String>>,
}

/// The tools besides execute_code.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTools {
    /// The tool test_code, which checks a program's syntax and policies and then runs it.
    #[serde(default)]
    pub(super) test_code: RawTestCode,
}

/// The tool test_code.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTestCode {
    /// Whether the tool test_code is offered. Default: false.
    pub(super) enabled: Option<bool>,
    /// The language of its programs. Default: "python".
    pub(super) language: Option<String>,
}

/// The most that a request can ask for.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawLimits {
    /// The longest timeout. Default: "5m", or the default timeout if that is longer.
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(super) max_timeout: Option<Duration>,
    /// The most memory, in MiB. Default: 1024, or what a language has if that is more.
    #[serde(rename = "maxMemoryMB")]
    pub(super) max_memory_mb: Option<u64>,
    /// The most CPU time, in cores. Default: 2, or what a language has if that is more.
    pub(super) max_cpus: Option<f64>,
    /// How many files a request can send, including the program. Default: 200.
    pub(super) max_files: Option<usize>,
    /// How large these files can be together, in KiB. Default: 10240.
    #[serde(rename = "maxFilesKB")]
    pub(super) max_files_kb: Option<u64>,
    /// How much of standard output, and of standard error, an answer holds, in KiB: half from the
    /// beginning and half from the end. Default: 64.
    #[serde(rename = "maxOutputKB")]
    pub(super) max_output_kb: Option<u64>,
    /// A program that prints more than this is killed, in MiB. Default: 64.
    #[serde(rename = "killOutputMB")]
    pub(super) kill_output_mb: Option<u64>,
    /// How many files a process can have open. Default: 1024.
    pub(super) open_files: Option<u32>,
}

/// A duration, or none. The pattern tells it from other texts, also to editors.
fn duration(_: &mut SchemaGenerator) -> Schema {
    let part = format!("[0-9]+ *({})", UNITS.join("|"));
    json_schema!({ "type": ["string", "null"], "pattern": format!("^{part}( *{part})*$") })
}
