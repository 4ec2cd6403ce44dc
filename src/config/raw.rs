//! The configuration file as it is written: every key, strictly, with no meaning yet.
//!
//! The keys at the top are those of isolator-mcp's file, so that an existing file works unchanged;
//! the sections beside them are ours. A key left out is `None` here; what it then means is decided
//! in one place, the validation.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `isolator_config.json`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Isolator configuration")]
pub(super) struct RawConfig {
    /// Where editors find the schema of this file.
    #[serde(rename = "$schema")]
    pub(super) schema: Option<String>,
    /// Path of the program that isolator-mcp called. Accepted and not needed.
    pub(super) isolator_path: Option<String>,
    /// Seconds that a program may run where the request does not say. Default: 60.
    pub(super) default_timeout_seconds: Option<f64>,
    /// Memory of a sandbox in MiB, its files included. Default: 256.
    #[serde(rename = "defaultMemoryMB")]
    pub(super) default_memory_mb: Option<u64>,
    /// CPU time of a sandbox, in cores. Default: 0.5.
    pub(super) default_cpus: Option<f64>,
    /// Processes and threads of a sandbox. Default: 64.
    pub(super) default_pids_limit: Option<u32>,
    /// Network of a sandbox: "none", "bridge", or the name of a network of the engine.
    /// Default: "none".
    pub(super) default_network_mode: Option<String>,
    /// Capabilities that a sandbox does not get. Default: ["ALL"].
    pub(super) default_cap_drop: Option<Vec<String>>,
    /// Whether a sandbox can only write to its workspace and to /tmp. Default: true.
    #[serde(rename = "defaultReadOnlyRootfs")]
    pub(super) default_read_only_rootfs: Option<bool>,
    /// Where a request's files go and where its program starts. Default: "/workspace".
    pub(super) default_container_workdir: Option<String>,
    /// The languages. Those that are built in need only what shall differ.
    #[serde(default)]
    pub(super) language_settings: BTreeMap<String, RawLanguage>,
    /// Folder of the snippets, relative to this file. Default: "./prompts".
    pub(super) prompts_dir: Option<String>,
    /// The container engine.
    #[serde(default)]
    pub(super) engine: RawEngine,
    /// Where images come from.
    #[serde(default)]
    pub(super) images: RawImages,
    /// How many sandboxes wait for requests, for languages that do not say.
    #[serde(default)]
    pub(super) pool: RawPool,
    /// How many requests run, and how many wait.
    #[serde(default)]
    pub(super) requests: RawRequests,
    /// What a request may ask for.
    #[serde(default)]
    pub(super) limits: RawLimits,
    /// What comes back of a run, and for how long.
    #[serde(default)]
    pub(super) results: RawResults,
    /// How clients reach `serve --http`.
    #[serde(default)]
    pub(super) http: RawHttp,
    /// What programs may not contain.
    #[serde(default)]
    pub(super) policies: RawPolicies,
    /// The tools beside execute_code.
    #[serde(default)]
    pub(super) tools: RawTools,
}

/// What comes back of a run, and for how long.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawResults {
    /// Most KiB of the files that come back from one run, pictures included; 0 for none. Default: 10240.
    #[serde(rename = "maxFilesKB")]
    pub(super) max_files_kb: Option<u64>,
    /// KiB of each of standard output and standard error that can be read afterwards where they are longer than
    /// an answer holds, from the beginning; 0 for none. Default: 8192.
    #[serde(rename = "keptOutputKB")]
    pub(super) kept_output_kb: Option<u64>,
    /// How long files, output, and the results of detached runs can be read, such as "10m". Default: "10m".
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) keep_for: Option<Duration>,
    /// How long a call waits for its program before it answers with a handle for the result, unless its caller
    /// follows its progress. Many hosts wait for a minute. Default: "45s".
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) detach_after: Option<Duration>,
}

/// How clients reach `serve --http`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawHttp {
    /// File of the bearer tokens that are accepted, relative to this file, one a line as `isolator token`
    /// prints it. Without it only clients on this machine are served. It is read again when it changes.
    pub(super) tokens: Option<String>,
    /// Certificate for TLS.
    pub(super) tls: Option<RawTls>,
    /// Names by which clients call this machine, with or without a port, beside those that stand for the
    /// machine itself: requests for others are refused.
    pub(super) allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may call, such as "https://agent.example:443", beside those on this machine.
    pub(super) allowed_origins: Option<Vec<String>>,
    /// Connections at the same time; others wait until one is closed. Default: 1024.
    pub(super) max_connections: Option<usize>,
    /// How long programs may go on when the server stops, such as "10s". Default: "10s".
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) drain: Option<Duration>,
}

/// Certificate for TLS.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawTls {
    /// File with the certificate and its chain in PEM, relative to this file.
    pub(super) certificate: String,
    /// File with its private key in PEM.
    pub(super) key: String,
}

/// One language.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawLanguage {
    /// Whether requests may use it. Default: true.
    pub(super) enabled: Option<bool>,
    /// Image of its sandboxes: any with a Linux userland.
    pub(super) image: Option<String>,
    /// What is in the image that a program may want to know, in a few words for the model.
    pub(super) description: Option<String>,
    /// Extensions of its files, the usual one first, such as [".py"].
    pub(super) extensions: Option<Vec<String>>,
    /// Name of the entrypoint where the request does not say, such as "main.py".
    pub(super) default_file: Option<String>,
    /// The program and its arguments. "{file}" stands for the entrypoint, "{sources}" for it and
    /// the request's other files with the language's extensions in the same folder. The request's
    /// own arguments follow.
    pub(super) command: Option<Vec<String>>,
    /// Variables set for its programs.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Numeric user and group of its programs. Default: "1000:1000".
    pub(super) user: Option<String>,
    /// Memory in MiB instead of the default.
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    /// CPU time in cores instead of the default.
    pub(super) cpus: Option<f64>,
    /// Processes and threads instead of the default.
    pub(super) pids_limit: Option<u32>,
    /// Size of the workspace in MiB. Default: a quarter of the memory, which it is part of.
    #[serde(rename = "workspaceMB")]
    pub(super) workspace_mb: Option<u64>,
    /// Size of /tmp in MiB. Default: a quarter of the memory, which it is part of.
    #[serde(rename = "tmpMB")]
    pub(super) tmp_mb: Option<u64>,
    /// How many of its sandboxes wait for requests.
    #[serde(default)]
    pub(super) pool: RawPool,
    /// The interpreter that is started in a sandbox ahead of its program.
    #[serde(default)]
    pub(super) preload: RawPreload,
    /// Explanations of what its programs print when they fail.
    pub(super) hints: Option<Vec<RawHint>>,
    /// How the tool check_syntax finds out whether a program is valid, without running it. Built-in
    /// languages have a check.
    pub(super) syntax_check: Option<RawSyntaxCheck>,
}

/// How a program is checked for syntax errors, in a sandbox of its language: by one of the checkers that
/// come with Isolator, or by a command of the image.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSyntaxCheck {
    /// A checker that comes with Isolator; the language's command has to run it.
    pub(super) checker: Option<RawInterpreter>,
    /// A program and its arguments. "{file}" stands for the file with the code, which has the
    /// language's default name.
    pub(super) command: Option<Vec<String>>,
    /// Regular expression that finds the error in what the command prints if its exit code is not 0,
    /// with groups named error and, where the command tells, line and offset. Without it the command
    /// has to print {"valid": true} or {"valid": false, "error": …, "line": …, "offset": …}.
    pub(super) pattern: Option<String>,
}

/// An interpreter that is started in a sandbox ahead of its program. A program that is not called by the
/// language's default name, brings variables of its own, or files that stand in the way of a module, is
/// started plainly, and none can tell the difference but by the time.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPreload {
    /// Whether it is. Default: true, where an interpreter is named.
    pub(super) enabled: Option<bool>,
    /// Which one the language's command starts.
    pub(super) interpreter: Option<RawInterpreter>,
    /// Modules to import in a second one, for programs that mention one of them. Default for Python:
    /// ["numpy", "pandas"]; for JavaScript: none.
    pub(super) modules: Option<Vec<String>>,
    /// Memory in MiB that the one with the modules may take; a sandbox has it in addition to its own,
    /// and an interpreter that takes more is not used. Default: 128.
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
}

/// An interpreter that can be started ahead of its program.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawInterpreter {
    /// CPython, or another that imports `sitecustomize`.
    Python,
    /// Node.js.
    Node,
}

/// An explanation of an error message.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawHint {
    /// Regular expression that finds the message on standard error.
    pub(super) pattern: String,
    /// What it means and what to do, with $1 for the first group.
    pub(super) advice: String,
}

/// The container engine.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEngine {
    /// Which engine makes the sandboxes. Default: "auto".
    pub(super) kind: Option<EngineKind>,
    /// Its address in the form of DOCKER_HOST. Default: DOCKER_HOST, the docker context, or one
    /// of the usual sockets.
    pub(super) host: Option<String>,
    /// OCI runtime to use instead of the engine's default, such as "runsc".
    pub(super) runtime: Option<String>,
}

/// A kind of engine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// The best that is there.
    Auto,
    /// A Docker engine, or one that speaks its API.
    Docker,
    /// Isolator itself, without any other engine.
    Embedded,
}

/// Where images come from.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawImages {
    /// When an image is built or pulled. Default: "missing".
    pub(super) policy: Option<RawPolicy>,
}

/// When an image is built or pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPolicy {
    /// When it is not there.
    Missing,
    /// Never.
    Never,
    /// At every start of the server.
    Always,
}

/// A pool.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPool {
    /// Sandboxes that wait for requests; 0 makes every start a cold one. Default: 2.
    pub(super) size: Option<usize>,
    /// How many of them stay thawed, which saves the time of thawing. Default: 1.
    pub(super) hot: Option<usize>,
    /// Age at which an unused sandbox is replaced, such as "30m". Default: "1h".
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) max_age: Option<Duration>,
}

/// How many requests run, and how many wait.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawRequests {
    /// Requests that run at the same time. Default: 8.
    pub(super) max_running: Option<usize>,
    /// Those of them that may be of one client over HTTP. Default: three quarters.
    pub(super) max_running_per_client: Option<usize>,
    /// Requests that may wait for one of those to end. Default: 256.
    pub(super) max_queue: Option<usize>,
    /// Longest wait, such as "30s". Default: "30s".
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) queue_timeout: Option<Duration>,
    /// Sandboxes made at the same time for all pools together. Default: 2.
    pub(super) refills: Option<usize>,
}

/// What programs may not contain. A policy is a file of rules in ast-grep's format; "strict", for Python,
/// comes with Isolator.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawPolicies {
    /// Folder of your own policies, relative to this file: NAME.yml is the policy NAME. Default: none.
    pub(super) folder: Option<String>,
    /// Names of the policies that programs are held to, by language, such as {"python": ["strict"]}.
    /// Default: none.
    #[serde(default)]
    pub(super) apply: BTreeMap<String, Vec<String>>,
}

/// The tools beside execute_code.
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
    /// Whether there is such a tool. Default: false.
    pub(super) enabled: Option<bool>,
    /// The language of its programs. Default: "python".
    pub(super) language: Option<String>,
}

/// What a request may ask for.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawLimits {
    /// Longest run, such as "5m". Default: "5m", or the default timeout if that is longer.
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub(super) max_timeout: Option<Duration>,
    /// Most memory in MiB. Default: 1024, or what a language has if that is more.
    #[serde(rename = "maxMemoryMB")]
    pub(super) max_memory_mb: Option<u64>,
    /// Most CPU time in cores. Default: 2, or what a language has if that is more.
    pub(super) max_cpus: Option<f64>,
    /// Most files, the entrypoint included. Default: 200.
    pub(super) max_files: Option<usize>,
    /// Most KiB in all files together. Default: 10240.
    #[serde(rename = "maxFilesKB")]
    pub(super) max_files_kb: Option<u64>,
    /// KiB kept of each of standard output and standard error, half of them from the beginning
    /// and half from the end. Default: 64.
    #[serde(rename = "maxOutputKB")]
    pub(super) max_output_kb: Option<u64>,
    /// MiB after which a program that prints on is killed. Default: 64.
    #[serde(rename = "killOutputMB")]
    pub(super) kill_output_mb: Option<u64>,
    /// Open files of a process. Default: 1024.
    pub(super) open_files: Option<u32>,
}
