//! Validates the raw configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::images::PullPolicy;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::pool::admission::AdmissionLimits;
use isolator_pool::pool::pools::PoolsLimits;
use isolator_pool::run::workspace::WorkspaceLimits;

use super::check::Check;
use super::common::Common;
use super::defaults::{
    CHECKPOINTS, DETACH_AFTER, DRAIN, IDLE_TIMEOUT, JOURNAL_KB, KEEP_ALIVE, KEEP_FOR,
    KEPT_OUTPUT_KB, KILL_OUTPUT_MB, LEAST_IN_FLIGHT_MB, LONGEST_SESSION, MAX_CONNECTIONS, MAX_CPU,
    MAX_FILES, MAX_FILES_KB, MAX_IN_FLIGHT_MB, MAX_MEMORY, MAX_OUTPUT_KB, MAX_QUEUE, MAX_REFILLS,
    MAX_RUNNING, MAX_SESSIONS, MAX_TIMEOUT, PROMPTS, QUEUE_TIMEOUT, REFILLS, RETURNED_FILES_KB,
    SESSION_IDLE_TIMEOUT, SESSION_MAX_AGE, SESSIONS_MEMORY_MB, TEST_CODE_LANGUAGE, TIMEOUT_S,
    WRITE_TIMEOUT,
};
use super::raw::{
    RawConfig, RawHttp, RawLanguage, RawLimits, RawPolicies, RawPolicy, RawResults, RawSessions,
    RawTestCode,
};
use super::{
    Config, EngineConfig, EngineKind, HttpConfig, Language, Problem, RequestLimits, ResultsConfig,
    SessionsConfig, Settings, TlsConfig, language, operators, packages, pool,
};
use crate::policy::{LanguageFiles, Policies};

pub(super) fn validate(
    raw: RawConfig,
    built_in: BTreeMap<String, RawLanguage>,
    file: Option<PathBuf>,
    directory: &Path,
) -> Result<Config, Vec<Problem>> {
    let mut check = Check::default();
    let common = Common::new(&raw, &mut check);
    let mut limits = limits(&raw, &mut check);
    let known: BTreeSet<String> =
        built_in.keys().chain(raw.language_settings.keys()).cloned().collect();
    let mut languages = language::languages(&raw, built_in, &common, &mut limits, &mut check);
    // Before anything else holds a language.
    let packages = packages::packages(&raw.packages, &known, &mut languages, directory, &mut check);
    let policies = policies(&raw.policies, &known, &languages, directory, &mut check);
    let test_code = test_code(&raw.tools.test_code, &languages, &mut check);
    let config = Config {
        file,
        is_file_chosen_on_command_line: false,
        directory: directory.to_owned(),
        settings: Settings::default(),
        // Without the dots of "./prompts", because it is shown.
        prompts: directory
            .join(raw.prompts_dir.as_deref().unwrap_or(PROMPTS))
            .components()
            .collect(),
        engine: EngineConfig {
            kind: raw.engine.kind.unwrap_or(EngineKind::Auto),
            host: raw.engine.host.clone(),
            favordynmods: raw.engine.favordynmods.unwrap_or(true),
            is_chosen_on_command_line: false,
        },
        pull_policy: match raw.images.policy.unwrap_or(RawPolicy::Missing) {
            RawPolicy::Missing => PullPolicy::Missing,
            RawPolicy::Never => PullPolicy::Never,
            RawPolicy::Always => PullPolicy::Always,
        },
        base_image: raw.images.base.clone(),
        pools: pools(&raw, &mut check),
        limits,
        languages,
        results: results(&raw.results, &mut check),
        sessions: sessions(&raw.sessions, &mut check),
        packages,
        http: http(&raw.http, directory, &mut check),
        admin: operators::admin(&raw.admin, directory, &mut check),
        audit: operators::audit(&raw.audit, directory, &mut check),
        log_level: raw.log.level.unwrap_or_default(),
        policies,
        test_code,
    };
    // Every language reports a wrong default again.
    let mut problems: Vec<Problem> = Vec::new();
    for problem in check.problems {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    if problems.is_empty() { Ok(config) } else { Err(problems) }
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
        output: OutputLimits { head: half, tail: half, kill: kill << 20 },
        in_flight: check.within(
            "requests.maxInFlightMB",
            raw.requests.max_in_flight_mb.unwrap_or(MAX_IN_FLIGHT_MB),
            LEAST_IN_FLIGHT_MB,
            1 << 20,
            MAX_IN_FLIGHT_MB,
        ) << 20,
    }
}

fn results(raw: &RawResults, check: &mut Check) -> ResultsConfig {
    let RawResults { max_files_kb, kept_output_kb, keep_for, detach_after } = *raw;
    let files = max_files_kb.unwrap_or(RETURNED_FILES_KB);
    let output = kept_output_kb.unwrap_or(KEPT_OUTPUT_KB);
    let output = check.within("results.keptOutputKB", output, 0, 1 << 16, KEPT_OUTPUT_KB) * 1024;
    ResultsConfig {
        files: check.within("results.maxFilesKB", files, 0, 1 << 16, RETURNED_FILES_KB) * 1024,
        output: usize::try_from(output).unwrap_or(usize::MAX),
        keep_for: check.duration("results.keepFor", keep_for, KEEP_FOR),
        detach_after: check.duration("results.detachAfter", detach_after, DETACH_AFTER),
    }
}

fn sessions(raw: &RawSessions, check: &mut Check) -> SessionsConfig {
    let RawSessions {
        max,
        max_per_client,
        idle_timeout,
        max_age,
        memory_mb,
        checkpoints,
        journal_kb,
    } = *raw;
    let max = check.within("sessions.max", max.unwrap_or(MAX_SESSIONS), 0, 10_000, MAX_SESSIONS);
    let share = three_quarters(max.max(1));
    let of_one = max_per_client.unwrap_or(share);
    let memory = memory_mb.unwrap_or(SESSIONS_MEMORY_MB);
    let memory = check.within("sessions.memoryMB", memory, 1, 1 << 30, SESSIONS_MEMORY_MB);
    let journal = journal_kb.unwrap_or(JOURNAL_KB);
    let checkpoints = checkpoints.unwrap_or(CHECKPOINTS);
    SessionsConfig {
        max,
        max_per_client: check.within("sessions.maxPerClient", of_one, 1, max.max(1), share),
        idle_timeout: check
            .duration("sessions.idleTimeout", idle_timeout, SESSION_IDLE_TIMEOUT)
            .min(LONGEST_SESSION),
        max_age: check.duration("sessions.maxAge", max_age, SESSION_MAX_AGE).min(LONGEST_SESSION),
        memory: ByteSize::mib(memory),
        checkpoints: check.within("sessions.checkpoints", checkpoints, 0, 64, CHECKPOINTS),
        journal: check.within("sessions.journalKB", journal, 0, 1 << 16, JOURNAL_KB) * 1024,
    }
}

fn http(raw: &RawHttp, directory: &Path, check: &mut Check) -> HttpConfig {
    for (at, origin) in raw.allowed_origins.iter().flatten().enumerate() {
        // Without a scheme it matches nothing; without a port its meaning depends on the library's version.
        let place = origin.split_once("://").map(|(_, place)| place.trim_start_matches('['));
        if !place.is_some_and(|place| place.contains(':') && !place.contains('/')) {
            check.problem(
                format!("http.allowedOrigins[{at}]"),
                format!("{origin:?} is not an origin: it needs a scheme and a port, as in \"https://agent.example:443\""),
            );
        }
    }
    let most = raw.max_connections.unwrap_or(MAX_CONNECTIONS);
    let most = check.within("http.maxConnections", most, 1, 65_536, MAX_CONNECTIONS);
    let share = three_quarters(most);
    let of_one = raw.max_connections_per_address.unwrap_or(share);
    HttpConfig {
        tokens: raw.tokens.as_deref().map(|path| directory.join(path)),
        tls: raw.tls.as_ref().map(|tls| TlsConfig {
            certificate: directory.join(&tls.certificate),
            key: directory.join(&tls.key),
        }),
        allowed_hosts: raw.allowed_hosts.clone().unwrap_or_default(),
        allowed_origins: raw.allowed_origins.clone().unwrap_or_default(),
        max_connections: most,
        max_connections_per_address: check.within(
            "http.maxConnectionsPerAddress",
            of_one,
            1,
            most,
            share,
        ),
        write_timeout: check.duration("http.writeTimeout", raw.write_timeout, WRITE_TIMEOUT),
        idle_timeout: check.duration("http.idleTimeout", raw.idle_timeout, IDLE_TIMEOUT),
        keep_alive: check.duration("http.keepAlive", raw.keep_alive, KEEP_ALIVE),
        drain: raw.drain.unwrap_or(DRAIN),
    }
}

/// The policies. Those of a disabled language are ignored.
fn policies(
    raw: &RawPolicies,
    known: &BTreeSet<String>,
    languages: &BTreeMap<String, Arc<Language>>,
    directory: &Path,
    check: &mut Check,
) -> Policies {
    let is_off = |name: &String| known.contains(name) && !languages.contains_key(name);
    let mut apply = raw.apply.clone();
    apply.retain(|name, _| !is_off(name));
    let folder = raw.folder.as_ref().map(|folder| directory.join(folder));
    let files: Vec<_> = languages
        .values()
        .map(|language| LanguageFiles { name: &language.name, extensions: &language.extensions })
        .collect();
    let mut problems = Vec::new();
    let policies = Policies::load(folder.as_deref(), &apply, &files, &mut problems);
    check.problems.extend(problems.into_iter().map(|(path, message)| Problem { path, message }));
    policies
}

fn test_code(
    raw: &RawTestCode,
    languages: &BTreeMap<String, Arc<Language>>,
    check: &mut Check,
) -> Option<Arc<Language>> {
    const PATH: &str = "tools.testCode.language";
    if raw.enabled != Some(true) {
        return None;
    }
    let name = raw.language.as_deref().unwrap_or(TEST_CODE_LANGUAGE);
    let Some(language) = languages.get(name) else {
        let names: Vec<_> = languages.keys().cloned().collect();
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

/// What one client can have of several: at least a quarter is for the others, if there is more than one.
fn three_quarters(all: usize) -> usize {
    (all - all.div_ceil(4)).max(1)
}

fn pools(raw: &RawConfig, check: &mut Check) -> PoolsLimits {
    let memory = pool::memory(&raw.pool, check);
    let raw = &raw.requests;
    let running = raw.max_running.unwrap_or(MAX_RUNNING);
    let running = check.within("requests.maxRunning", running, 1, 10_000, MAX_RUNNING);
    let most = three_quarters(running);
    let of_one = raw.max_running_per_client.unwrap_or(most);
    let refills = raw.refills.unwrap_or(REFILLS);
    PoolsLimits {
        admission: AdmissionLimits {
            running,
            running_of_one: check.within("requests.maxRunningPerClient", of_one, 1, running, most),
            queue: raw.max_queue.unwrap_or(MAX_QUEUE),
            wait: check.duration("requests.queueTimeout", raw.queue_timeout, QUEUE_TIMEOUT),
        },
        refills: check.within("requests.refills", refills, 1, MAX_REFILLS, REFILLS),
        memory,
    }
}
