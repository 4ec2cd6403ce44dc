//! The root of the configuration: its top-level keys, its sections, and the values that follow from them.
//!
//! The top-level keys are those of isolator-mcp, so that its files work unchanged; the sections are Isolator's own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, Resources};
use isolator_pool::engine::{Image, RootAccess, SandboxSpec};
use isolator_pool::pool::admission::AdmissionLimits;
use isolator_pool::pool::pools::PoolsLimits;
use serde_json::{Value, json};

use super::apis::ApisConfig;
use super::check::{Check, Problem};
use super::engine::{EngineConfig, EngineKind, ImagesConfig};
use super::http::HttpConfig;
use super::language::{
    self, CPUS, Language, LanguageSettings, MAX_MEMORY_MB, MAX_PIDS, MEMORY, MIN_MEMORY_MB,
    MIN_PIDS, PIDS,
};
use super::node::NodeConfig;
use super::operators::{AdminConfig, AuditConfig, LogConfig};
use super::packages::PackagesConfig;
use super::pool::PoolsConfig;
use super::requests::{RequestLimits, RequestsConfig, ResultsConfig};
use super::schema::published;
use super::section::{Cores, Mib, Seconds, Unit as _, section};
use super::sessions::SessionsConfig;
use super::shape::Shape;
use super::tools::{PolicySettings, ToolSettings};
use crate::policy::{LanguageFiles, Policies};

section! {
    /// `isolator_config.json`.
    #[schemars(title = "Isolator configuration")]
    pub struct Config {
        /// Where an editor finds the schema of this file. Ignored by Isolator.
        #[serde(rename = "$schema")]
        schema: Option<String> = None,
        /// The program that isolator-mcp called. Accepted and ignored.
        isolator_path: Option<String> = None,
        /// How long a program can run if the request has no timeout, in seconds.
        #[serde(rename = "defaultTimeoutSeconds", with = "Seconds")]
        #[schemars(with = "f64", range(min = 0.001, max = 86_400))]
        default_timeout: Duration = Duration::from_secs(60),
        /// Memory of a sandbox in MiB, including its files.
        #[serde(rename = "defaultMemoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = MIN_MEMORY_MB, max = MAX_MEMORY_MB))]
        default_memory: ByteSize = MEMORY,
        /// CPU time of a sandbox, in cores.
        #[serde(with = "Cores")]
        #[schemars(with = "f64", range(min = 0.01, max = 1024))]
        default_cpus: CpuShare = CPUS,
        /// Maximum number of processes and threads of a sandbox.
        #[schemars(range(min = MIN_PIDS, max = MAX_PIDS))]
        default_pids_limit: u32 = PIDS,
        /// Network of a sandbox: "none", "bridge", or the name of a Docker network. The embedded engine only knows "none".
        default_network_mode: String = "none".to_owned(),
        /// Capabilities that Docker takes from a sandbox; the embedded engine always takes all.
        default_cap_drop: Vec<String> = vec!["ALL".to_owned()],
        /// Whether a program can write only to its working directory, /tmp and /dev/shm.
        default_read_only_rootfs: bool = true,
        /// The working directory: where a request's files are put and where the program starts.
        default_container_workdir: String = WORKDIR.to_owned(),
        /// The languages. For built-in ones, set only the keys that should differ.
        language_settings: BTreeMap<String, LanguageSettings> = BTreeMap::new(),
        /// Folder of the snippets, relative to this file.
        prompts_dir: String = "./prompts".to_owned(),
        /// The engine that makes the sandboxes.
        pub engine: EngineConfig = EngineConfig::default(),
        /// When images are built or pulled, and from which base.
        pub images: ImagesConfig = ImagesConfig::default(),
        /// Sandboxes that are kept ready: for all languages that don't set it, and together.
        pub pool: PoolsConfig = PoolsConfig::default(),
        /// Requests that run at the same time, and requests that wait.
        pub requests: RequestsConfig = RequestsConfig::default(),
        /// The most that a request can ask for.
        pub limits: RequestLimits = RequestLimits::default(),
        /// The result of a run, and how long it is kept.
        pub results: ResultsConfig = ResultsConfig::default(),
        /// Sessions: sandboxes that are kept between the calls of a client.
        pub sessions: SessionsConfig = SessionsConfig::default(),
        /// Sets of packages, which programs can import from in addition to the packages of their image.
        pub packages: PackagesConfig = PackagesConfig::default(),
        /// How clients reach `serve --http`.
        pub http: HttpConfig = HttpConfig::default(),
        /// This server among several that have the same clients.
        pub node: NodeConfig = NodeConfig::default(),
        /// APIs of other systems, on the port of `serve --http`.
        pub apis: ApisConfig = ApisConfig::default(),
        /// The listener for operators.
        pub admin: AdminConfig = AdminConfig::default(),
        /// The audit log.
        pub audit: AuditConfig = AuditConfig::default(),
        /// The log of the server itself, on standard error.
        pub log: LogConfig = LogConfig::default(),
        /// The rules for the code of programs.
        #[serde(rename = "policies")]
        pub(super) policy_settings: PolicySettings = PolicySettings::default(),
        /// The tools besides execute_code.
        tools: ToolSettings = ToolSettings::default(),
        /// The file it came from; `None` for the defaults.
        #[serde(skip)]
        pub file: Option<PathBuf> = None,
        /// Whether `--config` gave the file.
        #[serde(skip)]
        pub is_file_chosen_on_command_line: bool = false,
        /// The folder in which relative paths start.
        #[serde(skip)]
        pub directory: PathBuf = PathBuf::new(),
        /// The keys that are set.
        #[serde(skip)]
        pub settings: Settings = Settings::default(),
        /// Folder of the snippets. It need not exist.
        #[serde(skip)]
        pub prompts: PathBuf = PathBuf::new(),
        /// The languages that are enabled, by name.
        #[serde(skip)]
        pub languages: BTreeMap<String, Arc<Language>> = BTreeMap::new(),
        /// The policies of the languages.
        #[serde(skip)]
        pub policies: Policies = Policies::default(),
        /// The language of the tool test_code, if it is enabled.
        #[serde(skip)]
        pub test_code: Option<Arc<Language>> = None,
        /// The fingerprint of what was loaded, once it was asked for.
        #[serde(skip)]
        pub(crate) fingerprint: OnceLock<String> = OnceLock::new(),
    }
}

/// The default working directory.
const WORKDIR: &str = "/workspace";

/// Each file of a tmpfs takes about 1 KiB of kernel memory.
const INODES: u32 = 8192;

/// Python's multiprocessing keeps its locks there; they are small.
const SHM: ByteSize = ByteSize::mib(16);

/// The keys that are set, by the file and by the environment.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Both together, as a file would have them.
    pub document: Value,
    /// The variables by the keys that they set.
    pub variables: BTreeMap<String, String>,
}

/// The file's JSON schema.
pub fn schema() -> Value {
    published(schemars::schema_for!(Config).to_value())
}

/// The shape of the file.
pub(super) fn shape() -> &'static Shape {
    static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
        let schema = schema();
        Shape::of(&schema, &schema)
    });
    &SHAPE
}

impl Config {
    /// Uses the engine that the command line names, if it names one.
    pub fn choose_engine(&mut self, kind: Option<EngineKind>) {
        if let Some(kind) = kind {
            self.engine.kind = kind;
            self.engine.is_chosen_on_command_line = true;
            self.fingerprint = OnceLock::new();
        }
    }

    /// How much output is captured: for the answer, and to be read later.
    pub fn output_with_kept(&self) -> OutputLimits {
        let OutputLimits { head, tail, kill } = self.limits.output();
        OutputLimits { head: head.max(self.results.output.as_usize()), tail, kill }
    }

    /// The limits of all pools together.
    pub fn pools_limits(&self) -> PoolsLimits {
        let requests = &self.requests;
        PoolsLimits {
            admission: AdmissionLimits {
                running: requests.max_running,
                running_of_one: requests.max_running_per_client,
                queue: requests.max_queue,
                wait: requests.queue_timeout,
            },
            refills: requests.refills,
            memory: self.pool.memory,
        }
    }

    /// Whether a call can take so long that its program is detached.
    pub fn detaches(&self) -> bool {
        self.longest_call() > self.results.detach_after
    }

    /// How long a call can take, including the time in the queue and for getting a sandbox.
    pub fn longest_call(&self) -> Duration {
        const SANDBOX: Duration = Duration::from_secs(60);
        self.limits.max_timeout.saturating_add(self.requests.queue_timeout).saturating_add(SANDBOX)
    }

    /// Checks the rules of all sections, and sets the values that follow from others.
    pub(super) fn complete(&mut self, check: &mut Check<'_>) {
        self.directory = check.directory.to_owned();
        // Without the dots of "./prompts", because it is shown.
        self.prompts = check.directory.join(&self.prompts_dir).components().collect();
        let common = json!(self);
        let template = self.template(check);
        let open = self.apis.languages_of_templates();
        let languages =
            language::build(&mut self.language_settings, &common, (&template, &open), check);
        self.languages = languages;
        self.pool.check(check);
        self.limits.check(self.default_timeout, &self.languages, check);
        let have_batches = self.apis.have_batches();
        self.requests.check(have_batches, check);
        self.sessions.check(check);
        self.http.check(have_batches, check);
        self.node.check(check);
        self.apis.check(&self.languages, self.http.tokens.is_some(), check);
        self.admin.check(check);
        self.audit.check(check);
        let known = self.language_settings.keys().cloned().collect();
        self.packages.check(&known, &self.languages, check);
        self.apis.check_packages(&self.packages, &self.languages, check);
        // Before anything else holds a language.
        self.packages.make_room(&mut self.languages);
        self.policies = self.load_policies(&known, check);
        self.test_code = self.test_code(check);
    }

    /// The properties that the sandboxes of all languages have.
    fn template(&self, check: &mut Check<'_>) -> SandboxSpec {
        let network = &self.default_network_mode;
        if network.is_empty() || network == "host" || network.starts_with("container:") {
            check.problem(
                "defaultNetworkMode",
                format!(
                    "{network:?} is not allowed, because it would share the network of the host \
                     or of another container: use \"none\", \"bridge\" or the name of a network"
                ),
            );
        }
        let workdir = &self.default_container_workdir;
        if !is_workdir(workdir) {
            let message = format!(
                "{workdir:?} is not allowed: use an absolute path outside of the system's folders and /tmp, such as \
                 {WORKDIR:?}"
            );
            check.problem("defaultContainerWorkdir", message);
        }
        SandboxSpec {
            image: Image::default(),
            resources: Resources { memory: self.default_memory, cpu: self.default_cpus },
            limits: FixedLimits {
                pids: self.default_pids_limit,
                open_files: self.limits.open_files,
                // They follow from the memory of each language.
                workspace: ByteSize::bytes(0),
                tmp: ByteSize::bytes(0),
                inodes: INODES,
                shm: SHM,
            },
            workdir: workdir.clone(),
            user: (1000, 1000),
            network: network.clone(),
            cap_drop: self.default_cap_drop.clone(),
            root: match self.default_read_only_rootfs {
                true => RootAccess::ReadOnly,
                false => RootAccess::ModesOfImage,
            },
            runtime: self.engine.runtime.clone(),
            preload: None,
            packages: None,
            allow_unlimited: self.engine.allow_unlimited,
        }
    }

    /// The policies. Those of a disabled language are ignored.
    fn load_policies(&self, known: &BTreeSet<String>, check: &mut Check<'_>) -> Policies {
        let PolicySettings { folder, apply } = &self.policy_settings;
        let is_off = |name: &String| known.contains(name) && !self.languages.contains_key(name);
        let mut apply = apply.clone();
        apply.retain(|name, _| !is_off(name));
        let folder = folder.as_ref().map(|folder| check.directory.join(folder));
        let languages = self.languages.values().map(|language| LanguageFiles {
            name: &language.name,
            extensions: &language.extensions,
        });
        let files: Vec<_> = languages.collect();
        let mut problems = Vec::new();
        let policies = Policies::load(folder.as_deref(), &apply, &files, &mut problems);
        check
            .problems
            .extend(problems.into_iter().map(|(path, message)| Problem { path, message }));
        policies
    }

    /// The language of the tool test_code, if it is enabled.
    fn test_code(&self, check: &mut Check<'_>) -> Option<Arc<Language>> {
        const PATH: &str = "tools.testCode.language";
        let settings = &self.tools.test_code;
        if !settings.enabled {
            return None;
        }
        let name = &settings.language;
        let Some(language) = self.languages.get(name) else {
            let names: Vec<_> = self.languages.keys().cloned().collect();
            let message =
                format!("{name:?} is not a configured language: use one of {}", names.join(", "));
            check.problem(PATH, message);
            return None;
        };
        if language.syntax.is_none() {
            let message = format!("this tool needs languageSettings.{name}.syntaxCheck");
            check.problem(PATH, message);
        }
        Some(Arc::clone(language))
    }
}

/// Whether a path can be the working directory. A file system is mounted there, so it can't be a folder of the system.
fn is_workdir(path: &str) -> bool {
    const TAKEN: [&str; 9] =
        ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var", "/root", "/run"];
    const TAKEN_WITH_ALL_BELOW: [&str; 5] = ["/tmp", "/dev", "/proc", "/sys", "/.isolator"];
    let Some(relative) = path.strip_prefix('/') else {
        return false;
    };
    let is_clean = relative.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_below = |taken: &str| path == taken || path.starts_with(&format!("{taken}/"));
    is_clean
        && !path.contains([':', ',', '\0'])
        && !TAKEN.contains(&path)
        && !TAKEN_WITH_ALL_BELOW.iter().any(|taken| is_below(taken))
}
