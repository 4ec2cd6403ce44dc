//! `isolator://languages`: what each language has, and what a request can ask for.

use std::time::Duration;

use isolator_pool::pool::pools::Pools;
use serde::Serialize;

use super::packages::{self, OneSet};
use crate::config::{Config, Language};
use crate::packages::Packages;

#[derive(Serialize)]
pub(super) struct Languages<'a> {
    languages: Vec<OneLanguage<'a>>,
    /// Names of packages that calls can ask for besides, as patterns.
    #[serde(skip_serializing_if = "Option::is_none")]
    packages_on_demand: Option<Vec<&'a str>>,
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
    /// Sets of packages that calls can ask for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packages: Vec<OneSet>,
    network: &'a str,
    limits: Limits,
}

/// Default limits of a program.
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

/// Bounds of what a request can ask for, in any language.
#[derive(Serialize)]
struct Requests {
    max_timeout_seconds: f64,
    max_memory_mb: u64,
    max_cpus: f64,
    max_files: usize,
    max_file_bytes: u64,
    max_output_bytes: usize,
}

pub(super) fn of<'a>(config: &'a Config, pools: &Pools, packages: &Packages) -> Languages<'a> {
    let limits = &config.limits;
    let requests = Requests {
        max_timeout_seconds: limits.max_timeout.as_secs_f64(),
        max_memory_mb: limits.max_memory.as_mib(),
        max_cpus: limits.max_cpu.as_cores(),
        max_files: limits.max_files,
        max_file_bytes: limits.files().total,
        max_output_bytes: limits.max_output.as_usize(),
    };
    let mut sets = packages::of_languages(packages);
    let languages = config.languages.values().map(|language| {
        let policies = config.policies.names(&language.name);
        let sets = sets.remove(&language.name).unwrap_or_default();
        one(language, limits.default_timeout, policies, sets, pools.image(&language.name))
    });
    let languages = languages.collect();
    let on_demand = config.packages.on_demand();
    let packages_on_demand = on_demand.map(|it| it.allow.iter().map(String::as_str).collect());
    Languages { languages, packages_on_demand, requests }
}

fn one<'a>(
    language: &'a Language,
    timeout: Duration,
    policies: &'a [String],
    packages: Vec<OneSet>,
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
        packages,
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
