//! The defaults and bounds of the configuration, each beside its reason.

use std::time::Duration;

use isolator_pool::engine::limits::{ByteSize, CpuShare};

// The defaults of isolator-mcp, whose file must mean here what it meant there.
pub(super) const TIMEOUT_S: f64 = 60.0;
pub(super) const MEMORY_MB: u64 = 256;
pub(super) const CPUS: f64 = 0.5;
pub(super) const PIDS: u32 = 64;
pub(super) const NETWORK: &str = "none";
pub(super) const CAP_DROP: &str = "ALL";
pub(super) const WORKDIR: &str = "/workspace";
pub(super) const PROMPTS: &str = "./prompts";

/// The engine refuses less, and the runner needs some.
pub(super) const MIN_MEMORY_MB: u64 = 16;

/// More than any machine has; keeps sums of sizes far from overflow.
pub(super) const MAX_MEMORY_MB: u64 = 1 << 20;

/// Process 1, the runner and the program are three already.
pub(super) const MIN_PIDS: u32 = 4;

/// More than a kernel has.
pub(super) const MAX_PIDS: u32 = 1 << 22;

/// Four times the two cores of a small server, because programs wait as well as compute.
pub(super) const MAX_RUNNING: usize = 8;

/// As many as can be served within the wait if each takes a tenth of a second.
pub(super) const MAX_QUEUE: usize = 256;

/// Four messages of the largest size.
pub(super) const MAX_IN_FLIGHT_MB: usize = 128;

/// Two messages of the largest size: one client can take half.
pub(super) const LEAST_IN_FLIGHT_MB: usize = 64;

/// Half of the time that MCP hosts wait for an answer.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// On two cores a third refill at once gained a tenth, and slowed down requests.
pub(super) const REFILLS: usize = 2;

/// More would only be in each other's way.
pub(super) const MAX_REFILLS: usize = 64;

pub(super) const MAX_TIMEOUT: Duration = Duration::from_secs(5 * 60);
pub(super) const MAX_MEMORY: ByteSize = ByteSize::mib(1024);
pub(super) const MAX_CPU: CpuShare = CpuShare::millis(2000);
pub(super) const MAX_FILES: usize = 200;
pub(super) const MAX_FILES_KB: u64 = 10 * 1024;

/// A model reads about 25,000 tokens of output at most, which is about this much text.
pub(super) const MAX_OUTPUT_KB: u64 = 64;
pub(super) const KILL_OUTPUT_MB: u64 = 64;

pub(super) const OPEN_FILES: u32 = 1024;

/// As much as a request can send, and more output than a model will ever page through.
pub(super) const RETURNED_FILES_KB: u64 = MAX_FILES_KB;
pub(super) const KEPT_OUTPUT_KB: u64 = 8 * 1024;
pub(super) const KEEP_FOR: Duration = Duration::from_secs(10 * 60);

/// Many hosts give up on a call after a minute.
pub(super) const DETACH_AFTER: Duration = Duration::from_secs(45);

/// Most are frozen, and cost only their memory.
pub(super) const MAX_SESSIONS: usize = 32;

/// A conversation that rests for longer is rarely taken up again.
pub(super) const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Longer ones mean "never" to people, and can't be counted by every clock.
pub(super) const LONGEST_SESSION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A working day.
pub(super) const SESSION_MAX_AGE: Duration = Duration::from_secs(8 * 60 * 60);

/// Sixteen sessions of the default size that use all of their memory, or a hundred of the usual ones.
pub(super) const SESSIONS_MEMORY_MB: u64 = 4096;

/// Agents go back a step or two. Each checkpoint is one of the 64 processes of a sandbox.
pub(super) const CHECKPOINTS: u32 = 8;

/// About a hundred cells of the usual size.
pub(super) const JOURNAL_KB: usize = 256;

/// Some hundreds of usual sets, or a few dozen with the largest native libraries.
pub(super) const MAX_STORE_MB: u64 = 20_480;

/// A large set over a slow line. What takes longer hangs.
pub(super) const BUILD_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Several times what the largest sets need that people use: uv takes a few hundred MiB for them, npm up to a GiB.
pub(super) const BUILD_MEMORY_MB: u64 = 2048;

/// As many as a group of agents uses in a day.
pub(super) const MAX_PACKAGE_SETS: usize = 64;

/// A client that reads nothing for so long is gone.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than the 60 seconds of nginx and most other proxies. A proxy that waits longer than the server sends requests into
/// connections that are being closed.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Proxies take a connection for dead after 30 seconds at the earliest.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Two or three for each of some hundreds of clients.
pub(super) const MAX_CONNECTIONS: usize = 1024;

/// Clients still wait for answers, and service managers kill a service only after thirty seconds or more.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// The language that agents write most.
pub(super) const TEST_CODE_LANGUAGE: &str = "python";
