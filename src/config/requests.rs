//! The sections `requests`, `limits` and `results`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::limits::{ByteSize, CpuShare, Resources};
use isolator_pool::run::workspace::WorkspaceLimits;

use super::check::{Check, three_quarters};
use super::language::{Language, MAX_MEMORY_MB, MIN_MEMORY_MB};
use super::schema::follows;
use super::section::{Cores, Kib, Mib, Text, Unit as _, duration, section};

/// Four times the two cores of a small server, because programs wait as well as compute.
const MAX_RUNNING: usize = 8;

/// As many as can be served within the wait if each takes a tenth of a second.
const MAX_QUEUE: usize = 256;

/// Trainers send a thousand programs at once, most of which take a few milliseconds.
const MAX_QUEUE_WITH_BATCHES: usize = 2048;

/// More refills would only slow each other down.
const MAX_REFILLS: usize = 64;

section! {
    /// Requests that run at the same time, and requests that wait.
    pub struct RequestsConfig {
        /// Maximum number of programs that run at the same time.
        #[schemars(range(min = 1, max = 10_000))]
        pub max_running: usize = MAX_RUNNING,
        /// Maximum number of them that belong to one HTTP client. Default: three quarters of maxRunning.
        #[schemars(range(min = 1))]
        #[schemars(transform = follows)]
        pub max_running_per_client: usize = three_quarters(MAX_RUNNING),
        /// Total size of the messages of all requests that are being received or served, in MiB. One HTTP client can have
        /// half of it. The server takes up to four times as much memory for them.
        // Four messages of the largest size. The minimum is two, because one client can take half.
        #[serde(rename = "maxInFlightMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 64, max = 1 << 20))]
        pub max_in_flight: ByteSize = ByteSize::mib(128),
        /// Maximum number of requests that wait for a slot. Default: 256, or 2048 with apis.sandboxFusion or apis.piston.
        #[schemars(transform = follows)]
        pub max_queue: usize = MAX_QUEUE,
        /// How long a request can wait for a slot.
        // Half of the time that MCP hosts wait for an answer.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub queue_timeout: Duration = Duration::from_secs(30),
        /// Total size of the answers that are kept for calls with idempotency keys, in MiB; 0: none. One HTTP client can have
        /// half of it.
        // Ten thousand answers of the usual size.
        #[serde(rename = "keyedAnswersMB", with = "Mib")]
        #[schemars(with = "u64", range(max = 1 << 20))]
        pub keyed_answers: ByteSize = ByteSize::mib(64),
        /// How long these answers are kept.
        // Load balancers and SDKs send a call again within seconds, people within minutes.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub keep_keyed_answers: Duration = Duration::from_mins(10),
        /// How many sandboxes are created at the same time, for all pools together.
        // On two cores a third refill at once gained a tenth, and slowed down requests.
        #[schemars(range(min = 1, max = MAX_REFILLS))]
        pub refills: usize = 2,
    }
}

impl RequestsConfig {
    /// `have_batches` says whether clients may send many programs at once.
    pub(super) fn check(&mut self, have_batches: bool, check: &mut Check<'_>) {
        if have_batches && !check.is_set("requests.maxQueue") {
            self.max_queue = MAX_QUEUE_WITH_BATCHES;
        }
        check.share(
            "requests.maxRunningPerClient",
            &mut self.max_running_per_client,
            self.max_running,
        );
    }
}

section! {
    /// The most that a request can ask for.
    #[derive(Clone)]
    pub struct RequestLimits {
        /// The longest timeout. If the default timeout is longer, the default is that.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub max_timeout: Duration = Duration::from_mins(5),
        /// The most memory, in MiB. If a language has more, the default is that.
        #[serde(rename = "maxMemoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = MIN_MEMORY_MB, max = MAX_MEMORY_MB))]
        pub max_memory: ByteSize = ByteSize::mib(1024),
        /// The most CPU time, in cores. If a language has more, the default is that.
        #[serde(rename = "maxCpus", with = "Cores")]
        #[schemars(with = "f64", range(min = 0.01, max = 1024))]
        pub max_cpu: CpuShare = CpuShare::millis(2000),
        /// Maximum number of files that a request can send, including the program.
        #[schemars(range(min = 1, max = 100_000))]
        pub max_files: usize = 200,
        /// Total size of these files, in KiB.
        #[serde(rename = "maxFilesKB", with = "Kib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 20))]
        pub max_files_size: ByteSize = ByteSize::mib(10),
        /// How much of standard output, and of standard error, an answer holds, in KiB: half from the beginning and half
        /// from the end.
        // A model reads about 25,000 tokens of output at most, which is about this much text.
        #[serde(rename = "maxOutputKB", with = "Kib")]
        #[schemars(with = "u64", range(min = 1, max = 16 * 1024))]
        pub max_output: ByteSize = ByteSize::bytes(64 << 10),
        /// A program that prints more than this is killed, in MiB.
        #[serde(rename = "killOutputMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 20))]
        pub kill_output: ByteSize = ByteSize::mib(64),
        /// Maximum number of files that a process can have open.
        #[schemars(range(min = 64, max = 1 << 20))]
        pub open_files: u32 = 1024,
        /// How long a program can run if the request has no timeout: `defaultTimeoutSeconds`.
        #[serde(skip)]
        pub default_timeout: Duration = Duration::ZERO,
    }
}

impl RequestLimits {
    /// The limits of the files that a request sends.
    pub fn files(&self) -> WorkspaceLimits {
        WorkspaceLimits { files: self.max_files, total: self.max_files_size.as_bytes() }
    }

    /// The limits of the output that an answer holds.
    pub fn output(&self) -> OutputLimits {
        let half = self.max_output.as_usize() / 2;
        OutputLimits { head: half, tail: half, kill: self.kill_output.as_bytes() }
    }

    /// Checks the section. A request can ask for what its language has, so a limit that is not set grows to that.
    pub(super) fn check(
        &mut self,
        default_timeout: Duration,
        languages: &BTreeMap<String, Arc<Language>>,
        check: &mut Check<'_>,
    ) {
        const PATH: &str = "limits.maxTimeout";
        self.default_timeout = default_timeout;
        let max_timeout = self.max_timeout;
        if !check.is_set(PATH) {
            self.max_timeout = max_timeout.max(default_timeout);
        } else if max_timeout < default_timeout {
            let message =
                format!("{max_timeout:?} is less than the default timeout of {default_timeout:?}");
            check.problem(PATH, message);
        }
        for (name, language) in languages {
            let Resources { memory, cpu } = language.sandbox.resources;
            if !check.is_set("limits.maxMemoryMB") {
                self.max_memory = self.max_memory.max(memory);
            } else if memory > self.max_memory {
                check.problem("limits.maxMemoryMB", format!("is less than the {memory} of {name}"));
            }
            if !check.is_set("limits.maxCpus") {
                self.max_cpu = self.max_cpu.max(cpu);
            } else if cpu > self.max_cpu {
                check.problem("limits.maxCpus", format!("is less than the {cpu} of {name}"));
            }
        }
    }
}

section! {
    /// The result of a run, and how long it is kept.
    #[derive(Clone)]
    pub struct ResultsConfig {
        /// Total size of the files that come back from one run, in KiB, including pictures; 0: none.
        #[serde(rename = "maxFilesKB", with = "Kib")]
        #[schemars(with = "u64", range(max = 65_536))]
        pub files: ByteSize = ByteSize::mib(10),
        /// How much of each output stream, from its beginning, can be read later if it is too long for the answer, in KiB;
        /// 0: nothing.
        // More output than a model will ever page through.
        #[serde(rename = "keptOutputKB", with = "Kib")]
        #[schemars(with = "u64", range(max = 65_536))]
        pub output: ByteSize = ByteSize::mib(8),
        /// How long files, output and the results of long runs can be read.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub keep_for: Duration = Duration::from_mins(10),
        /// How long a call waits for its program before it is answered with a handle, unless its caller asks to wait for
        /// the end.
        // Many hosts give up on a call after a minute.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub detach_after: Duration = Duration::from_secs(45),
    }
}
