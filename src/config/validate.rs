//! From what is written to what it means. Every default stands here, beside its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::admission::AdmissionLimits;
use isolator_pool::engine::{Image, SandboxSpec};
use isolator_pool::images::PullPolicy;
use isolator_pool::limits::{ByteSize, CpuShare, FixedLimits, Resources};
use isolator_pool::pool::PoolSize;
use isolator_pool::pools::PoolsLimits;
use isolator_pool::workspace::{WorkspaceBuilder, WorkspaceLimits};
use regex::Regex;

use super::raw::{RawConfig, RawLanguage, RawLimits, RawPolicy, RawPool, RawRequests};
use super::{
    CommandPart, Config, EngineConfig, EngineKind, Hint, Language, Problem, RequestLimits,
};

// The defaults of isolator-mcp, whose file must mean here what it meant there.
const TIMEOUT_S: f64 = 60.0;
const MEMORY_MB: u64 = 256;
const CPUS: f64 = 0.5;
const PIDS: u32 = 64;
const NETWORK: &str = "none";
const CAP_DROP: &str = "ALL";
const WORKDIR: &str = "/workspace";
const PROMPTS: &str = "./prompts";

/// The engine refuses less, and the runner needs some.
const MIN_MEMORY_MB: u64 = 16;

/// More than any machine has; keeps sums of sizes far from overflow.
const MAX_MEMORY_MB: u64 = 1 << 20;

/// One thawed and one paused: the next request is instant, the one after it almost.
const POOL_SIZE: usize = 2;
const POOL_HOT: usize = 1;

/// Waiting costs nothing but memory; this only bounds how old the oldest can be.
const POOL_MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// A pool is not a fleet; beyond this a typing error is likelier than a wish.
const MAX_POOL_SIZE: usize = 1000;

/// Four times the two cores of a small server, because programs wait as well as compute.
const MAX_RUNNING: usize = 8;
const MAX_QUEUE: usize = 64;

/// Half of what MCP hosts wait for an answer.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// More refills at once gained a tenth on two cores, and slowed the requests between them.
const REFILLS: usize = 2;

const MAX_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const MAX_MEMORY: ByteSize = ByteSize::mib(1024);
const MAX_CPU: CpuShare = CpuShare::millis(2000);
const MAX_FILES: usize = 200;
const MAX_FILES_KB: u64 = 10 * 1024;

/// A model reads about 25,000 tokens of output at most, which is about this much text.
const MAX_OUTPUT_KB: u64 = 64;
const KILL_OUTPUT_MB: u64 = 64;

const OPEN_FILES: u32 = 1024;
const USER: (u32, u32) = (1000, 1000);

/// A quarter of the memory, which files in a tmpfs are part of, leaves a program at least half of
/// it when both its file systems are full.
const TMPFS_SHARE: u64 = 4;

/// Each file of a tmpfs takes about 1 KiB of kernel memory.
const INODES: u32 = 8192;

/// Python's multiprocessing keeps its locks there; they are small.
const SHM: ByteSize = ByteSize::mib(16);

/// Where a program finds a home and a place for temporary files in any image.
const ENV: [(&str, &str); 2] = [("HOME", "/tmp"), ("TMPDIR", "/tmp")];

/// Programs see these when they try to reach the network that is not there.
const NETWORK_HINT: (&str, &str) = (
    "(?i)network is unreachable|temporary failure in name resolution|name or service not known|\
     getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|ENETUNREACH|dial tcp[^\\n]*(?:lookup|unreachable)|\
     NameResolutionError|could not resolve host",
    "the sandbox has no network: send the data as files instead",
);

pub(super) fn validate(
    raw: RawConfig,
    built_in: BTreeMap<String, RawLanguage>,
    file: Option<PathBuf>,
    directory: &Path,
) -> Result<Config, Vec<Problem>> {
    let mut check = Check::default();
    let common = Common::new(&raw, &mut check);
    let mut limits = limits(&raw, &mut check);
    let languages = languages(&raw, built_in, &common, &mut limits, &mut check);
    let config = Config {
        file,
        prompts: directory.join(raw.prompts_dir.as_deref().unwrap_or(PROMPTS)),
        engine: EngineConfig {
            kind: raw.engine.kind.unwrap_or(EngineKind::Auto),
            host: raw.engine.host.clone(),
        },
        pull_policy: match raw.images.policy.unwrap_or(RawPolicy::Missing) {
            RawPolicy::Missing => PullPolicy::Missing,
            RawPolicy::Never => PullPolicy::Never,
            RawPolicy::Always => PullPolicy::Always,
        },
        pools: pools(&raw.requests, &mut check),
        limits,
        languages,
    };
    // A common default that is wrong is found wrong by every language.
    let mut problems: Vec<Problem> = Vec::new();
    for problem in check.problems {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

/// Collects what is wrong, so that all of it is told at once.
#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            path: path.into(),
            message: message.into(),
        });
    }

    /// A number within bounds; the default where it is not.
    fn within<T>(&mut self, path: &str, value: T, least: T, most: T, default: T) -> T
    where
        T: PartialOrd + std::fmt::Display + Copy,
    {
        if value >= least && value <= most {
            return value;
        }
        self.problem(
            path,
            format!("{value} is not allowed: it must be from {least} to {most}"),
        );
        default
    }

    fn memory(&mut self, path: &str, mb: u64) -> ByteSize {
        ByteSize::mib(self.within(path, mb, MIN_MEMORY_MB, MAX_MEMORY_MB, MEMORY_MB))
    }

    fn cpu(&mut self, path: &str, cores: f64) -> CpuShare {
        // The engine refuses less than a hundredth.
        let cores = self.within(path, cores, 0.01, 1024.0, CPUS);
        CpuShare::from_cores(cores).unwrap_or(CpuShare::millis(500))
    }

    fn duration(&mut self, path: &str, value: Option<Duration>, default: Duration) -> Duration {
        match value {
            Some(Duration::ZERO) => {
                self.problem(path, "a duration of zero is not allowed");
                default
            }
            value => value.unwrap_or(default),
        }
    }
}

/// What all languages have unless they say otherwise.
struct Common {
    memory_mb: u64,
    cpus: f64,
    pids: u32,
    network: String,
    cap_drop: Vec<String>,
    readonly_root: bool,
    workdir: String,
    open_files: u32,
    runtime: Option<String>,
    pool: RawPool,
}

impl Common {
    fn new(raw: &RawConfig, check: &mut Check) -> Self {
        let network = raw
            .default_network_mode
            .clone()
            .unwrap_or_else(|| NETWORK.to_owned());
        if network.is_empty() || network == "host" || network.starts_with("container:") {
            check.problem(
                "defaultNetworkMode",
                format!(
                    "{network:?} is not allowed, because it would share the network of the host \
                     or of another container: use \"none\", \"bridge\" or the name of a network"
                ),
            );
        }
        let workdir = raw
            .default_container_workdir
            .clone()
            .unwrap_or_else(|| WORKDIR.to_owned());
        if !is_workdir(&workdir) {
            check.problem(
                "defaultContainerWorkdir",
                format!("{workdir:?} is not an absolute path of its own, such as {WORKDIR:?}"),
            );
        }
        Self {
            memory_mb: raw.default_memory_mb.unwrap_or(MEMORY_MB),
            cpus: raw.default_cpus.unwrap_or(CPUS),
            pids: raw.default_pids_limit.unwrap_or(PIDS),
            network,
            cap_drop: raw
                .default_cap_drop
                .clone()
                .unwrap_or_else(|| vec![CAP_DROP.to_owned()]),
            readonly_root: raw.default_read_only_rootfs.unwrap_or(true),
            workdir,
            open_files: check.within(
                "limits.openFiles",
                raw.limits.open_files.unwrap_or(OPEN_FILES),
                64,
                1 << 20,
                OPEN_FILES,
            ),
            runtime: raw.engine.runtime.clone(),
            pool: raw.pool.clone(),
        }
    }
}

/// A file system of its own is mounted there, so it can't be one of the system's places.
fn is_workdir(path: &str) -> bool {
    const TAKEN: [&str; 9] = [
        "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var", "/root", "/run",
    ];
    const TAKEN_WITH_ALL_BELOW: [&str; 5] = ["/tmp", "/dev", "/proc", "/sys", "/.isolator"];
    let Some(relative) = path.strip_prefix('/') else {
        return false;
    };
    let is_clean = relative
        .split('/')
        .all(|part| !matches!(part, "" | "." | ".."));
    let is_below = |taken: &str| path == taken || path.starts_with(&format!("{taken}/"));
    is_clean
        && !path.contains([':', ',', '\0'])
        && !TAKEN.contains(&path)
        && !TAKEN_WITH_ALL_BELOW.iter().any(|taken| is_below(taken))
}

fn limits(raw: &RawConfig, check: &mut Check) -> RequestLimits {
    let seconds = raw.default_timeout_seconds.unwrap_or(TIMEOUT_S);
    let seconds = check.within("defaultTimeoutSeconds", seconds, 0.001, 86_400.0, TIMEOUT_S);
    let default_timeout = Duration::from_secs_f64(seconds);
    let RawLimits {
        max_timeout,
        max_memory_mb,
        max_cpus,
        max_files,
        max_files_kb,
        max_output_kb,
        kill_output_mb,
        open_files: _,
    } = &raw.limits;
    let otherwise = MAX_TIMEOUT.max(default_timeout);
    let max_timeout = check.duration("limits.maxTimeout", *max_timeout, otherwise);
    if max_timeout < default_timeout {
        check.problem(
            "limits.maxTimeout",
            format!("{max_timeout:?} is less than the default timeout of {default_timeout:?}"),
        );
    }
    let max_memory = max_memory_mb.map(|mb| check.memory("limits.maxMemoryMB", mb));
    let max_cpu = max_cpus.map(|cores| check.cpu("limits.maxCpus", cores));
    let files = max_files.unwrap_or(MAX_FILES);
    let total = max_files_kb.unwrap_or(MAX_FILES_KB);
    let output = max_output_kb.unwrap_or(MAX_OUTPUT_KB);
    let output = check.within("limits.maxOutputKB", output, 1, 16 * 1024, MAX_OUTPUT_KB);
    let kill = kill_output_mb.unwrap_or(KILL_OUTPUT_MB);
    let kill = check.within("limits.killOutputMB", kill, 1, 1 << 20, KILL_OUTPUT_MB);
    let half = usize::try_from(output * 1024 / 2).unwrap_or(usize::MAX);
    RequestLimits {
        default_timeout,
        max_timeout,
        max_memory: max_memory.unwrap_or(MAX_MEMORY),
        max_cpu: max_cpu.unwrap_or(MAX_CPU),
        files: WorkspaceLimits {
            files: check.within("limits.maxFiles", files, 1, 100_000, MAX_FILES),
            total: check.within("limits.maxFilesKB", total, 1, 1 << 20, MAX_FILES_KB) * 1024,
        },
        output: OutputLimits {
            head: half,
            tail: half,
            kill: kill << 20,
        },
    }
}

fn pools(raw: &RawRequests, check: &mut Check) -> PoolsLimits {
    let running = raw.max_running.unwrap_or(MAX_RUNNING);
    let refills = raw.refills.unwrap_or(REFILLS);
    PoolsLimits {
        admission: AdmissionLimits {
            running: check.within("requests.maxRunning", running, 1, 10_000, MAX_RUNNING),
            queue: raw.max_queue.unwrap_or(MAX_QUEUE),
            wait: check.duration("requests.queueTimeout", raw.queue_timeout, QUEUE_TIMEOUT),
        },
        refills: check.within("requests.refills", refills, 1, 64, REFILLS),
    }
}

fn languages(
    raw: &RawConfig,
    mut built_in: BTreeMap<String, RawLanguage>,
    common: &Common,
    limits: &mut RequestLimits,
    check: &mut Check,
) -> BTreeMap<String, Arc<Language>> {
    for (name, settings) in &raw.language_settings {
        match built_in.remove(name) {
            Some(known) => built_in.insert(name.clone(), merge(known, settings.clone())),
            None => built_in.insert(name.clone(), settings.clone()),
        };
    }
    let mut languages = BTreeMap::new();
    for (name, settings) in built_in {
        if settings.enabled == Some(false) {
            continue;
        }
        if let Some(language) = language(&name, settings, common, check) {
            // What a language has by itself a request may have too, unless the operator set the
            // bound, and then the two must agree.
            let own = language.sandbox.resources;
            if raw.limits.max_memory_mb.is_none() {
                limits.max_memory = limits.max_memory.max(own.memory);
            } else if own.memory > limits.max_memory {
                let message = format!("{name} has {}, which is more", own.memory);
                check.problem("limits.maxMemoryMB", message);
            }
            if raw.limits.max_cpus.is_none() {
                limits.max_cpu = limits.max_cpu.max(own.cpu);
            } else if own.cpu > limits.max_cpu {
                check.problem(
                    "limits.maxCpus",
                    format!("{name} has {}, which is more", own.cpu),
                );
            }
            languages.insert(name, Arc::new(language));
        }
    }
    if languages.is_empty() && check.problems.is_empty() {
        check.problem("languageSettings", "every language is disabled");
    }
    languages
}

/// The operator's settings over those that are built in.
fn merge(built_in: RawLanguage, own: RawLanguage) -> RawLanguage {
    let env = match (built_in.env, own.env) {
        (Some(mut env), Some(own)) => {
            env.extend(own);
            Some(env)
        }
        (env, own) => own.or(env),
    };
    RawLanguage {
        enabled: own.enabled,
        image: own.image.or(built_in.image),
        description: own.description.or(built_in.description),
        extensions: own.extensions.or(built_in.extensions),
        default_file: own.default_file.or(built_in.default_file),
        command: own.command.or(built_in.command),
        env,
        user: own.user.or(built_in.user),
        memory_mb: own.memory_mb.or(built_in.memory_mb),
        cpus: own.cpus.or(built_in.cpus),
        pids_limit: own.pids_limit.or(built_in.pids_limit),
        workspace_mb: own.workspace_mb.or(built_in.workspace_mb),
        tmp_mb: own.tmp_mb.or(built_in.tmp_mb),
        pool: own.pool,
        hints: own.hints.or(built_in.hints),
    }
}

fn language(name: &str, raw: RawLanguage, common: &Common, check: &mut Check) -> Option<Language> {
    let at = |key: &str| format!("languageSettings.{name}.{key}");
    if name.is_empty()
        || !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+#_-.".contains(c))
    {
        check.problem(
            format!("languageSettings.{name}"),
            "a language's name has letters, digits and + # _ - . only",
        );
    }
    let Some(image) = raw.image.as_ref().filter(|image| !image.trim().is_empty()) else {
        check.problem(
            at("image"),
            "is required: the name of an image, such as \"debian:stable\"",
        );
        return None;
    };
    let image = Image {
        name: image.clone(),
        ..Image::default()
    };
    let extensions = raw.extensions.clone().unwrap_or_default();
    if extensions.is_empty() || extensions.iter().any(|e| !is_extension(e)) {
        check.problem(
            at("extensions"),
            "is required: extensions with their dot, such as [\".sh\"]",
        );
    }
    let usual = extensions.first().cloned().unwrap_or_default();
    let default_file = raw
        .default_file
        .clone()
        .unwrap_or_else(|| format!("main{usual}"));
    let any = WorkspaceLimits { files: 1, total: 0 };
    if let Err(error) = WorkspaceBuilder::new(any).add(&default_file, Vec::new()) {
        check.problem(at("defaultFile"), error.to_string());
    }
    let command = command(raw.command.as_deref().unwrap_or_default());
    if !command
        .iter()
        .any(|part| matches!(part, CommandPart::File | CommandPart::Sources))
    {
        check.problem(
            at("command"),
            "is required: a program and its arguments with \"{file}\" for the entrypoint, such as \
             [\"bash\", \"{file}\"]",
        );
    }
    let mut env: BTreeMap<String, String> = ENV
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    env.extend(raw.env.clone().unwrap_or_default());
    if let Some(bad) = env
        .keys()
        .find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        check.problem(at("env"), format!("{bad:?} is not the name of a variable"));
    }
    Some(Language {
        name: name.to_owned(),
        description: raw.description.clone().unwrap_or_default(),
        extensions,
        default_file,
        command,
        env,
        hints: hints(&raw, &at("hints"), check),
        sandbox: sandbox(&raw, image, common, &at, check),
        pool: pool(&raw.pool, &common.pool, &at("pool"), check),
    })
}

fn is_extension(extension: &str) -> bool {
    extension.len() > 1 && extension.starts_with('.') && !extension.contains(['/', '\0'])
}

fn command(words: &[String]) -> Vec<CommandPart> {
    words
        .iter()
        .map(|word| match word.as_str() {
            "{file}" => CommandPart::File,
            "{sources}" => CommandPart::Sources,
            _ => CommandPart::Word(word.clone()),
        })
        .collect()
}

fn hints(raw: &RawLanguage, path: &str, check: &mut Check) -> Vec<Hint> {
    let own = raw.hints.as_deref().unwrap_or_default();
    let own = own
        .iter()
        .map(|hint| (hint.pattern.as_str(), hint.advice.as_str()));
    let mut hints = Vec::new();
    for (index, (pattern, advice)) in own.chain([NETWORK_HINT]).enumerate() {
        match Regex::new(pattern) {
            Ok(pattern) => hints.push(Hint {
                pattern,
                advice: advice.to_owned(),
            }),
            Err(error) => check.problem(format!("{path}[{index}].pattern"), error.to_string()),
        }
    }
    hints
}

fn sandbox(
    raw: &RawLanguage,
    image: Image,
    common: &Common,
    at: &impl Fn(&str) -> String,
    check: &mut Check,
) -> SandboxSpec {
    // A default that is wrong is told once, under its own name.
    let place = |own: bool, key: &str, default: &str| {
        if own { at(key) } else { default.to_owned() }
    };
    let memory_path = place(raw.memory_mb.is_some(), "memoryMB", "defaultMemoryMB");
    let memory = check.memory(&memory_path, raw.memory_mb.unwrap_or(common.memory_mb));
    let cpu_path = place(raw.cpus.is_some(), "cpus", "defaultCpus");
    let cpu = check.cpu(&cpu_path, raw.cpus.unwrap_or(common.cpus));
    let pids_path = place(raw.pids_limit.is_some(), "pidsLimit", "defaultPidsLimit");
    // Process 1, the runner and the program are three already.
    let pids = check.within(
        &pids_path,
        raw.pids_limit.unwrap_or(common.pids),
        4,
        1 << 22,
        PIDS,
    );
    let mut tmpfs = |key: &str, mb: Option<u64>| {
        let quarter = ByteSize::bytes(memory.as_bytes() / TMPFS_SHARE);
        let Some(mb) = mb else { return quarter };
        let half = memory.as_bytes() / 2 >> 20;
        ByteSize::mib(check.within(&at(key), mb, 1, half.max(1), half.max(1)))
    };
    let workspace = tmpfs("workspaceMB", raw.workspace_mb);
    let tmp = tmpfs("tmpMB", raw.tmp_mb);
    let user = match raw.user.as_deref().map(parse_user) {
        None => USER,
        Some(Some(user)) => user,
        Some(None) => {
            check.problem(
                at("user"),
                "must be a numeric user and group other than root's, such as \"1000:1000\"",
            );
            USER
        }
    };
    SandboxSpec {
        image,
        resources: Resources { memory, cpu },
        limits: FixedLimits {
            pids,
            open_files: common.open_files,
            workspace,
            tmp,
            inodes: INODES,
            shm: SHM,
        },
        workdir: common.workdir.clone(),
        user,
        network: common.network.clone(),
        cap_drop: common.cap_drop.clone(),
        readonly_root: common.readonly_root,
        runtime: common.runtime.clone(),
    }
}

fn parse_user(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    let (user, group) = (user.parse().ok()?, group.parse().ok()?);
    (user != 0 && group != 0).then_some((user, group))
}

fn pool(own: &RawPool, common: &RawPool, path: &str, check: &mut Check) -> PoolSize {
    let place = |own: bool, key: &str| {
        if own {
            format!("{path}.{key}")
        } else {
            format!("pool.{key}")
        }
    };
    let size = own.size.or(common.size).unwrap_or(POOL_SIZE);
    let size = check.within(
        &place(own.size.is_some(), "size"),
        size,
        0,
        MAX_POOL_SIZE,
        POOL_SIZE,
    );
    let hot = match own.hot.or(common.hot) {
        None => POOL_HOT.min(size),
        Some(hot) if hot <= size => hot,
        // A pool made smaller than the common front has a smaller front.
        Some(_) if own.hot.is_none() && own.size.is_some() => size,
        Some(hot) => {
            check.problem(
                place(own.hot.is_some(), "hot"),
                format!("{hot} of {size} sandboxes can't be hot: at most the pool's size"),
            );
            size
        }
    };
    let age_path = place(own.max_age.is_some(), "maxAge");
    let max_age = check.duration(&age_path, own.max_age.or(common.max_age), POOL_MAX_AGE);
    PoolSize { size, hot, max_age }
}
