//! What holds: every key with its value, and where the value comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use isolator_pool::pool::sizing::Size;
use serde_json::{Value, json};

use super::defaults::{
    CAP_DROP, CPUS, MAX_PACKAGE_SETS, MEMORY_MB, NETWORK, OPEN_FILES, PIDS, PROMPTS,
    TEST_CODE_LANGUAGE, WORKDIR,
};
use super::language::PRELOAD_MEMORY_MB;
use super::load::{built_in, raw};
use super::operators::{RawLog, filled_audit};
use super::pool::{POOL_HOT, POOL_MAX_AGE, POOL_SIZE, POOL_TARGET, raw_size};
use super::raw::{
    RawConfig, RawEngine, RawHttp, RawImages, RawLanguage, RawLimits, RawOnDemand, RawPackageTools,
    RawPackages, RawPolicies, RawPolicy, RawPool, RawPools, RawPreload, RawRequests, RawResults,
    RawSessions, RawSize, RawTestCode, RawTools,
};
use super::shape::{Shape, configuration};
use super::{Config, Language, Problem, language};

/// A key with the value that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The key, as `languageSettings.python.cpus`.
    pub key: String,
    /// Its value; `null` if it has none.
    pub value: Value,
    /// Where that comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Isolator's default.
    Default,
    /// Isolator's default, which holds only if something else is configured.
    DefaultIf(&'static str),
    /// The key for all languages.
    Key(&'static str),
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::DefaultIf(condition) => write!(f, "default, if {condition}"),
            Self::Key(key) => f.write_str(key),
            Self::File(file) => file.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::CommandLine => f.write_str("--engine"),
        }
    }
}

/// The keys of a language that have a key for all languages.
const COMMON: [(&str, &str); 7] = [
    ("memoryMB", "defaultMemoryMB"),
    ("cpus", "defaultCpus"),
    ("pidsLimit", "defaultPidsLimit"),
    ("pool.size", "pool.size"),
    ("pool.target", "pool.target"),
    ("pool.hot", "pool.hot"),
    ("pool.maxAge", "pool.maxAge"),
];

impl Config {
    /// Every key with the value that holds.
    ///
    /// # Errors
    ///
    /// When the settings are not those of a valid configuration.
    pub fn effective(&self) -> Result<Vec<Effective>, Vec<Problem>> {
        let built_in = built_in()?;
        let known = json!({ "languageSettings": built_in });
        let filled = filled(self, raw(&self.settings.document)?, built_in);
        let mut leaves = Vec::new();
        flatten(configuration(), &json!(filled), &[], &mut leaves);
        let effective = |(path, value): (Vec<String>, Value)| {
            let origin = origin(self, &path, &known);
            Effective { key: path.join("."), value, origin }
        };
        Ok(leaves.into_iter().map(effective).collect())
    }
}

/// Where the value of a key comes from.
fn origin(config: &Config, path: &[String], built_in: &Value) -> Origin {
    let key = path.join(".");
    if key == "engine.kind" && config.engine.is_chosen_on_command_line {
        return Origin::CommandLine;
    }
    if let Some(variable) = config.settings.variables.get(&key) {
        return Origin::Variable(variable.clone());
    }
    let has = |document: &Value| {
        path.iter().try_fold(document, |at, key| at.get(key)).is_some_and(|it| !it.is_null())
    };
    if has(&config.settings.document) {
        return config.file.clone().map_or(Origin::Default, Origin::File);
    }
    if let Some(condition) = condition(config, path) {
        return Origin::DefaultIf(condition);
    }
    match path {
        [section, _, rest @ ..] if section == "languageSettings" && !has(built_in) => {
            let rest = rest.join(".");
            let common = COMMON.iter().find(|(own, _)| *own == rest);
            common.map_or(Origin::Default, |(_, key)| Origin::Key(key))
        }
        _ => Origin::Default,
    }
}

/// What has to be configured before a key matters that is not set.
fn condition(config: &Config, path: &[String]) -> Option<&'static str> {
    let path: Vec<_> = path.iter().map(String::as_str).collect();
    let language = |name| config.languages.get(name);
    let has_one_size = |it: &&Arc<Language>| matches!(it.pool.size, Size::Fixed(_));
    match path[..] {
        ["audit", key] if config.audit.is_none() && key != "path" => Some("audit.path is set"),
        ["languageSettings", name, "pool", "target"] => {
            language(name).filter(has_one_size).map(|_| "pool.size is a range")
        }
        ["languageSettings", name, "preload", "memoryMB" | "fork" | "modules"] => {
            let has_none = |it: &&Arc<Language>| it.kernel.is_none();
            language(name).filter(has_none).map(|_| "preload.interpreter is set")
        }
        _ => None,
    }
}

/// Finds every key and its value. A key without a value has `null`.
fn flatten(shape: &Shape, value: &Value, path: &[String], found: &mut Vec<(Vec<String>, Value)>) {
    let below = |name: &String| [path, std::slice::from_ref(name)].concat();
    match (shape, value) {
        (Shape::Section { keys, .. }, _) => {
            // Of a language that is off, nothing else matters.
            let is_off = value["enabled"] == false && keys.contains_key("image");
            for (name, shape) in keys.iter().filter(|(name, _)| !is_off || *name == "enabled") {
                flatten(shape, &value[name], &below(name), found);
            }
        }
        (Shape::Names(shape), Value::Object(entries)) => {
            for (name, value) in entries {
                flatten(shape, value, &below(name), found);
            }
        }
        _ => found.push((path.to_vec(), value.clone())),
    }
}

/// The configuration as a file that leaves nothing out. Every field is named here, so that none is forgotten.
fn filled(config: &Config, raw: RawConfig, built_in: BTreeMap<String, RawLanguage>) -> RawConfig {
    let languages = language::merged(built_in, &raw.language_settings);
    let timeout = config.limits.default_timeout.as_secs_f64();
    let target = raw.pool.target.unwrap_or(POOL_TARGET);
    let size = raw.pool.size.unwrap_or(RawSize::Fixed(POOL_SIZE));
    let most = match size {
        RawSize::Fixed(size) => size,
        RawSize::Adaptive(range) => range.max,
    };
    RawConfig {
        schema: raw.schema,
        isolator_path: raw.isolator_path,
        default_timeout_seconds: Some(timeout),
        default_memory_mb: raw.default_memory_mb.or(Some(MEMORY_MB)),
        default_cpus: raw.default_cpus.or(Some(CPUS)),
        default_pids_limit: raw.default_pids_limit.or(Some(PIDS)),
        default_network_mode: raw.default_network_mode.or_else(|| Some(NETWORK.to_owned())),
        default_cap_drop: raw.default_cap_drop.or_else(|| Some(vec![CAP_DROP.to_owned()])),
        default_read_only_rootfs: raw.default_read_only_rootfs.or(Some(true)),
        default_container_workdir: raw
            .default_container_workdir
            .or_else(|| Some(WORKDIR.to_owned())),
        language_settings: languages
            .into_iter()
            .map(|(name, raw)| {
                let known = config.languages.get(&name);
                let off = RawLanguage { enabled: Some(false), ..RawLanguage::default() };
                (name, known.map_or(off, |known| filled_language(known, raw, target)))
            })
            .collect(),
        prompts_dir: raw.prompts_dir.or_else(|| Some(PROMPTS.to_owned())),
        engine: RawEngine {
            kind: Some(config.engine.kind),
            host: raw.engine.host,
            allow_unlimited: raw.engine.allow_unlimited.or(Some(false)),
            runtime: raw.engine.runtime,
            favordynmods: raw.engine.favordynmods.or(Some(true)),
        },
        images: RawImages {
            policy: raw.images.policy.or(Some(RawPolicy::Missing)),
            base: raw.images.base,
        },
        pool: RawPools {
            size: Some(size),
            target: Some(target),
            hot: raw.pool.hot.or(Some(POOL_HOT.min(most))),
            max_age: raw.pool.max_age.or(Some(POOL_MAX_AGE)),
            memory_mb: raw.pool.memory_mb,
        },
        requests: requests(config),
        limits: limits(config, &raw.limits),
        results: results(config),
        sessions: sessions(config),
        packages: packages(config, raw.packages),
        http: http(config, raw.http),
        admin: raw.admin,
        audit: filled_audit(raw.audit),
        log: RawLog { level: Some(config.log_level) },
        policies: RawPolicies { folder: raw.policies.folder, apply: raw.policies.apply },
        tools: RawTools {
            test_code: RawTestCode {
                enabled: raw.tools.test_code.enabled.or(Some(false)),
                language: raw.tools.test_code.language.or(Some(TEST_CODE_LANGUAGE.to_owned())),
            },
        },
    }
}

fn filled_language(language: &Language, raw: RawLanguage, target: f64) -> RawLanguage {
    let sandbox = &language.sandbox;
    let (user, group) = sandbox.user;
    let preload = sandbox.preload.as_ref();
    RawLanguage {
        enabled: Some(true),
        image: raw.image,
        description: Some(language.description.clone()),
        extensions: raw.extensions,
        default_file: Some(language.default_file.clone()),
        command: raw.command,
        env: Some(language.env.clone()),
        user: Some(format!("{user}:{group}")),
        memory_mb: Some(sandbox.resources.memory.as_mib()),
        cpus: Some(sandbox.resources.cpu.as_cores()),
        pids_limit: Some(sandbox.limits.pids),
        workspace_mb: Some(sandbox.limits.workspace.as_mib()),
        tmp_mb: Some(sandbox.limits.tmp.as_mib()),
        pool: RawPool {
            size: Some(raw_size(language.pool.size)),
            target: Some(match language.pool.size {
                Size::Adaptive { target: own, .. } => own,
                Size::Fixed(_) => target,
            }),
            hot: Some(language.pool.hot),
            max_age: Some(language.pool.max_age),
        },
        preload: RawPreload {
            enabled: Some(preload.is_some()),
            interpreter: raw.preload.interpreter,
            modules: raw.preload.modules.or_else(|| Some(Vec::new())),
            memory_mb: raw.preload.memory_mb.or(Some(PRELOAD_MEMORY_MB)),
            fork: raw.preload.fork.or(Some(true)),
        },
        hints: raw.hints,
        syntax_check: raw.syntax_check,
    }
}

fn requests(config: &Config) -> RawRequests {
    let pools = &config.pools;
    RawRequests {
        max_running: Some(pools.admission.running),
        max_running_per_client: Some(pools.admission.running_of_one),
        max_in_flight_mb: Some(config.limits.in_flight >> 20),
        max_queue: Some(pools.admission.queue),
        queue_timeout: Some(pools.admission.wait),
        refills: Some(pools.refills),
    }
}

fn limits(config: &Config, raw: &RawLimits) -> RawLimits {
    let limits = &config.limits;
    RawLimits {
        max_timeout: Some(limits.max_timeout),
        max_memory_mb: Some(limits.max_memory.as_mib()),
        max_cpus: Some(limits.max_cpu.as_cores()),
        max_files: Some(limits.files.files),
        max_files_kb: Some(limits.files.total >> 10),
        max_output_kb: Some((limits.output.head + limits.output.tail) as u64 >> 10),
        kill_output_mb: Some(limits.output.kill >> 20),
        open_files: raw.open_files.or(Some(OPEN_FILES)),
    }
}

fn sessions(config: &Config) -> RawSessions {
    let sessions = &config.sessions;
    RawSessions {
        max: Some(sessions.max),
        max_per_client: Some(sessions.max_per_client),
        idle_timeout: Some(sessions.idle_timeout),
        max_age: Some(sessions.max_age),
        memory_mb: Some(sessions.memory.as_mib()),
        checkpoints: Some(sessions.checkpoints),
        journal_kb: Some(sessions.journal >> 10),
    }
}

fn results(config: &Config) -> RawResults {
    let results = &config.results;
    RawResults {
        max_files_kb: Some(results.files >> 10),
        kept_output_kb: Some(results.output as u64 >> 10),
        keep_for: Some(results.keep_for),
        detach_after: Some(results.detach_after),
    }
}

fn packages(config: &Config, raw: RawPackages) -> RawPackages {
    let packages = &config.packages;
    let RawOnDemand { enabled, allow, max_sets } = raw.on_demand;
    let RawPackageTools { uv, npm } = raw.tools;
    RawPackages {
        index: raw.index,
        sets: raw.sets,
        on_demand: RawOnDemand {
            enabled: enabled.or(Some(false)),
            allow: allow.or_else(|| Some(vec!["*".to_owned()])),
            max_sets: max_sets.or(Some(MAX_PACKAGE_SETS)),
        },
        max_store_mb: Some(packages.max_store.as_mib()),
        build_timeout: Some(packages.build_timeout),
        build_memory_mb: Some(packages.build_memory.as_mib()),
        tools: RawPackageTools {
            uv: uv.or_else(|| Some("uv".to_owned())),
            npm: npm.or_else(|| Some("npm".to_owned())),
        },
    }
}

fn http(config: &Config, raw: RawHttp) -> RawHttp {
    let http = &config.http;
    RawHttp {
        tokens: raw.tokens,
        tls: raw.tls,
        allowed_hosts: Some(http.allowed_hosts.clone()),
        allowed_origins: Some(http.allowed_origins.clone()),
        max_connections: Some(http.max_connections),
        max_connections_per_address: Some(http.max_connections_per_address),
        write_timeout: Some(http.write_timeout),
        idle_timeout: Some(http.idle_timeout),
        keep_alive: Some(http.keep_alive),
        drain: Some(http.drain),
    }
}
