//! The section `languageSettings`.

use std::collections::BTreeMap;

use isolator_pool::engine::limits::{ByteSize, CpuShare};
use isolator_pool::engine::preload::Interpreter;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::pool::PoolSettings;
use crate::config::schema::follows;
use crate::config::section::{Cores, Mib, Unit as _, section};

// The defaults of isolator-mcp, whose file must mean here what it meant there.
pub(in crate::config) const MEMORY: ByteSize = ByteSize::mib(256);
pub(in crate::config) const CPUS: CpuShare = CpuShare::millis(500);
pub(in crate::config) const PIDS: u32 = 64;

/// The engine refuses less, and the runner needs some.
pub(in crate::config) const MIN_MEMORY_MB: u64 = 16;

/// More than any machine has; keeps sums of sizes far from overflow.
pub(in crate::config) const MAX_MEMORY_MB: u64 = 1 << 20;

/// Process 1, the runner and the program are three already.
pub(in crate::config) const MIN_PIDS: u32 = 4;

/// More than a kernel has.
pub(in crate::config) const MAX_PIDS: u32 = 1 << 22;

section! {
    /// A language.
    #[derive(Clone)]
    pub(in crate::config) struct LanguageSettings {
        /// Whether requests can use the language.
        pub(super) enabled: bool = true,
        /// Image of its sandboxes: any with a Linux userland.
        pub(super) image: Option<String> = None,
        /// A few words for the model about the content of the image.
        #[schemars(transform = follows)]
        pub(super) description: String = String::new(),
        /// Extensions of its files, the usual one first, such as [".py"].
        #[schemars(transform = follows)]
        pub(super) extensions: Vec<String> = Vec::new(),
        /// File name of a program whose request gives none, such as "main.py". Default: main and the first extension.
        pub(super) default_file: Option<String> = None,
        /// The command that runs a program. "{file}" stands for the program's file; "{sources}" for that file and the
        /// request's other files with the language's extensions in the same folder. "{heapMB}", also in a word, stands for
        /// the largest heap in MiB that fits into the request's memory. The request's arguments follow.
        #[schemars(transform = follows)]
        pub(super) command: Vec<String> = Vec::new(),
        /// Environment variables for its programs.
        // They give a program a home and a folder for temporary files in any image.
        pub(super) env: BTreeMap<String, String> =
            ["HOME", "TMPDIR"].map(|name| (name.to_owned(), "/tmp".to_owned())).into(),
        /// Whether its programs can add files in the usual folders of the system, such as / and /etc, up to the size of /tmp. They
        /// have the home /home/user, which is the working directory. Default: true for the languages of templates in apis.e2b.
        #[schemars(transform = follows)]
        pub(super) writable_root: bool = false,
        /// User and group of its programs, as numbers; not root.
        pub(super) user: String = "1000:1000".to_owned(),
        /// Memory of a sandbox in MiB, including its files. Default: defaultMemoryMB.
        #[serde(rename = "memoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = MIN_MEMORY_MB, max = MAX_MEMORY_MB))]
        #[schemars(transform = follows)]
        pub(super) memory: ByteSize = MEMORY,
        /// CPU time of a sandbox in cores. Default: defaultCpus.
        #[serde(with = "Cores")]
        #[schemars(with = "f64", range(min = 0.01, max = 1024))]
        #[schemars(transform = follows)]
        pub(super) cpus: CpuShare = CPUS,
        /// Maximum number of processes and threads of a sandbox. Default: defaultPidsLimit.
        #[schemars(range(min = MIN_PIDS, max = MAX_PIDS))]
        #[schemars(transform = follows)]
        pub(super) pids_limit: u32 = PIDS,
        /// Size of the working directory in MiB, which is part of the memory. Default: a quarter of it.
        #[serde(rename = "workspaceMB", with = "Mib")]
        #[schemars(with = "Option<u64>", range(min = 1, max = MAX_MEMORY_MB))]
        pub(super) workspace: Option<ByteSize> = None,
        /// Size of /tmp in MiB, which is part of the memory. Default: a quarter of it.
        #[serde(rename = "tmpMB", with = "Mib")]
        #[schemars(with = "Option<u64>", range(min = 1, max = MAX_MEMORY_MB))]
        pub(super) tmp: Option<ByteSize> = None,
        /// How many of its sandboxes are kept ready.
        pub(super) pool: PoolSettings = PoolSettings::default(),
        /// The interpreter that is started before its program comes.
        pub(super) preload: PreloadSettings = PreloadSettings::default(),
        /// Advice that is added to known error messages.
        #[schemars(transform = follows)]
        pub(super) hints: Vec<HintSettings> = Vec::new(),
        /// How check_syntax checks a program of this language without running it. Built-in languages have a check.
        pub(super) syntax_check: Option<SyntaxCheckSettings> = None,
    }
}

section! {
    /// An interpreter that is started before its program comes. Programs that would notice get a new interpreter: those
    /// whose file has another name, that set variables, or whose files could replace a module.
    #[derive(Clone)]
    pub(super) struct PreloadSettings {
        /// Whether an interpreter is preloaded, if one is named.
        #[schemars(transform = follows)]
        pub(super) enabled: bool = true,
        /// The interpreter that the language's command starts.
        #[schemars(schema_with = "interpreter")]
        pub(super) interpreter: Option<Interpreter> = None,
        /// Modules that a second interpreter imports, for programs that import one of them. Default for Python: ["numpy",
        /// "pandas"].
        #[schemars(transform = follows)]
        pub(super) modules: Vec<String> = Vec::new(),
        /// Memory in MiB that the interpreter with the modules can take. A sandbox in which it waits gets what it really
        /// takes in addition to its own. An interpreter that takes more is not used.
        // Twice what Python takes with numpy and pandas.
        #[serde(rename = "memoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = MAX_MEMORY_MB))]
        pub(super) memory: ByteSize = ByteSize::mib(128),
        /// Whether the interpreters in sandboxes are forks of one that is kept, where the engine can do that. Forks start
        /// sooner and share memory, so that programs can measure a little of what others do.
        pub(super) fork: bool = true,
    }
}

section! {
    /// How check_syntax checks a program: with a checker that comes with Isolator, or with a command in the image.
    #[derive(Clone)]
    pub(super) struct SyntaxCheckSettings {
        /// A checker that comes with Isolator; the language's command must run that interpreter.
        #[schemars(schema_with = "interpreter")]
        pub(super) checker: Option<Interpreter> = None,
        /// A command in the image that checks the syntax. "{file}" stands for the file with the code, which has the
        /// language's default name.
        #[schemars(transform = follows)]
        pub(super) command: Option<Vec<String>> = None,
        /// Regular expression that finds the error in what the command prints when its exit code is not 0. It needs a group
        /// "error", and can have groups "line" and "offset". Without a pattern the command must print {"valid": true} or
        /// {"valid": false, "error": …, "line": …, "offset": …}.
        pub(super) pattern: Option<String> = None,
    }
}

/// Advice for an error message.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HintSettings {
    /// Regular expression that finds the message on standard error.
    pub(super) pattern: String,
    /// The meaning of the message and its correction. $1 stands for the first group.
    pub(super) advice: String,
}

/// An interpreter that can be preloaded: CPython, or another that imports `sitecustomize`, or Node.js.
fn interpreter(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": ["python", "node"] })
}
