//! `isolator://languages`: what each language has, and what a request can ask for.

use std::time::Duration;

use isolator_pool::pool::pools::Pools;
use serde::Serialize;

use crate::config::{Config, Language};

#[derive(Serialize)]
pub(super) struct Languages<'a> {
    languages: Vec<OneLanguage<'a>>,
    requests: Requests,
}

#[derive(Serialize)]
struct OneLanguage<'a> {
    name: &'a str,
    description: &'a str,
    image: &'a str,
    /// Not known before the engine has looked for the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    default_file: &'a str,
    extensions: &'a [String],
    /// Modules that are imported before the program is there.
    preloaded: &'a [String],
    checks_syntax: bool,
    policies: &'a [String],
    network: &'a str,
    limits: Limits,
}

/// What a program can use by default.
#[derive(Serialize)]
struct Limits {
    timeout_seconds: f64,
    memory_mb: u64,
    cpus: f64,
    processes: u32,
    open_files: u32,
    workspace_mb: u64,
    tmp_mb: u64,
}

/// What a request can ask for, in any language.
#[derive(Serialize)]
struct Requests {
    max_timeout_seconds: f64,
    max_memory_mb: u64,
    max_cpus: f64,
    max_files: usize,
    max_file_bytes: u64,
    max_output_bytes: usize,
}

pub(super) fn of<'a>(config: &'a Config, pools: &Pools) -> Languages<'a> {
    let limits = &config.limits;
    let requests = Requests {
        max_timeout_seconds: limits.max_timeout.as_secs_f64(),
        max_memory_mb: limits.max_memory.as_mib(),
        max_cpus: limits.max_cpu.as_cores(),
        max_files: limits.files.files,
        max_file_bytes: limits.files.total,
        max_output_bytes: limits.output.head + limits.output.tail,
    };
    let languages = config.languages.values().map(|language| {
        let policies = config.policies.names(&language.name);
        one(language, limits.default_timeout, policies, pools.image(&language.name))
    });
    Languages { languages: languages.collect(), requests }
}

fn one<'a>(
    language: &'a Language,
    timeout: Duration,
    policies: &'a [String],
    digest: Option<String>,
) -> OneLanguage<'a> {
    let sandbox = &language.sandbox;
    OneLanguage {
        name: &language.name,
        description: &language.description,
        image: &sandbox.image.name,
        digest,
        default_file: &language.default_file,
        extensions: &language.extensions,
        preloaded: sandbox.preload.as_ref().map_or(&[], |preload| &preload.modules),
        checks_syntax: language.syntax.is_some(),
        policies,
        network: &sandbox.network,
        limits: Limits {
            timeout_seconds: timeout.as_secs_f64(),
            memory_mb: sandbox.resources.memory.as_mib(),
            cpus: sandbox.resources.cpu.as_cores(),
            processes: sandbox.limits.pids,
            open_files: sandbox.limits.open_files,
            workspace_mb: sandbox.limits.workspace.as_mib(),
            tmp_mb: sandbox.limits.tmp.as_mib(),
        },
    }
}
