//! The section `packages`: sets of packages, where they come from, and what calls can ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobBuilder, GlobSet};
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::preload::Interpreter;

use super::Language;
use super::check::Check;
use super::defaults::{BUILD_MEMORY_MB, BUILD_TIMEOUT, MAX_PACKAGE_SETS, MAX_STORE_MB};
use super::index::{self, Index};
use super::raw::{RawIndex, RawOnDemand, RawPackageTools, RawPackages, RawSet};
use crate::requirement;

/// Folder of the locks, beside the configuration file.
const LOCK_FOLDER: &str = "isolator.lock";

/// Longest name of a set. It is the name of a folder, and stands in the schemas of tools.
const LONGEST_NAME: usize = 64;

/// Most sets with a name. Each is built, and stands in the schemas of tools.
const MAX_SETS: usize = 256;

/// npm takes 200 MiB for a handful of packages, with its own program.
const LEAST_BUILD_MEMORY_MB: u64 = 256;

/// The caches of the tools may have this part of what the store may have.
const CACHE_SHARE: u64 = 4;

/// The section `packages`.
#[derive(Debug, Clone)]
pub struct PackagesConfig {
    /// Where packages come from, where the operator says it.
    pub index: BTreeMap<Interpreter, Index>,
    /// The sets with a name.
    pub sets: BTreeMap<String, SetConfig>,
    /// What calls can ask for besides these, if that is on.
    pub on_demand: Option<OnDemandConfig>,
    /// Most bytes of all sets together.
    pub max_store: ByteSize,
    /// How long resolving and installing one set can take.
    pub build_timeout: Duration,
    /// Most memory of a tool with all its processes.
    pub build_memory: ByteSize,
    /// The programs that do it.
    pub tools: ToolsConfig,
    /// Folder of the locks. It need not exist.
    pub lock_folder: PathBuf,
}

/// A set of packages with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetConfig {
    /// Its name in requests.
    pub name: String,
    /// The language whose programs can use it. It is configured, and has an interpreter.
    pub language: String,
    /// What is in it, as it was written. Each is valid, and none has an address or an option.
    pub requirements: Vec<String>,
}

/// What calls can ask for besides the sets with a name.
#[derive(Debug, Clone)]
pub struct OnDemandConfig {
    /// Patterns of the names of packages, as they were written.
    pub allow: Vec<Glob>,
    /// Most sets that are kept.
    pub max_sets: usize,
    /// The same patterns, for the names of Python.
    python: GlobSet,
    /// The same, for those of npm.
    node: GlobSet,
}

/// The programs that resolve and install packages: names to be found in PATH, or paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolsConfig {
    /// uv; `uv` if the operator names none.
    pub uv: PathBuf,
    /// npm; `npm` if the operator names none.
    pub npm: PathBuf,
}

impl PackagesConfig {
    /// Whether calls can ask for any packages.
    pub fn is_used(&self) -> bool {
        !self.sets.is_empty() || self.on_demand.is_some()
    }

    /// Most bytes of the caches of the tools when nobody builds.
    pub fn max_cache(&self) -> u64 {
        self.max_store.as_bytes() / CACHE_SHARE
    }

    /// What an operator may not have meant, each with its key.
    pub fn warnings(&self) -> Vec<(String, String)> {
        let open = self.index.iter().filter(|(_, index)| index.is_open());
        let warning = |(interpreter, index): (&Interpreter, &Index)| {
            let message = format!(
                "{index} is asked without encryption, so anyone between it and this machine can see \
                 credentials and replace packages; use https"
            );
            (index_key(*interpreter).to_owned(), message)
        };
        open.map(warning).collect()
    }
}

impl OnDemandConfig {
    /// Whether calls can ask for a package with this normalised name.
    pub fn allows(&self, interpreter: Interpreter, name: &str) -> bool {
        match interpreter {
            Interpreter::Python => self.python.is_match(name),
            Interpreter::Node => self.node.is_match(name),
        }
    }
}

/// The key of the index for an interpreter.
pub fn index_key(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "packages.index.python",
        Interpreter::Node => "packages.index.javascript",
    }
}

/// Checks the section, and gives the languages that can use packages a place for them. `known` are all languages, with
/// those that are switched off.
pub(super) fn packages(
    raw: &RawPackages,
    known: &BTreeSet<String>,
    languages: &mut BTreeMap<String, Arc<Language>>,
    directory: &Path,
    check: &mut Check,
) -> PackagesConfig {
    let RawPackages { index, sets, on_demand, max_store_mb, build_timeout, build_memory_mb, tools } =
        raw;
    let store = max_store_mb.unwrap_or(MAX_STORE_MB);
    let store = check.within("packages.maxStoreMB", store, 1, 1 << 30, MAX_STORE_MB);
    let memory = build_memory_mb.unwrap_or(BUILD_MEMORY_MB);
    let memory = check.within(
        "packages.buildMemoryMB",
        memory,
        LEAST_BUILD_MEMORY_MB,
        1 << 30,
        BUILD_MEMORY_MB,
    );
    let config = PackagesConfig {
        index: self::index(index, directory, check),
        sets: self::sets(sets, known, languages, check),
        on_demand: self::on_demand(on_demand, check),
        max_store: ByteSize::mib(store),
        build_timeout: check.duration("packages.buildTimeout", *build_timeout, BUILD_TIMEOUT),
        build_memory: ByteSize::mib(memory),
        tools: self::tools(tools, directory, check),
        lock_folder: directory.join(LOCK_FOLDER),
    };
    for language in languages.values_mut() {
        let has_sets = config.sets.values().any(|set| set.language == language.name);
        if (has_sets || config.on_demand.is_some())
            && let Some(language) = Arc::get_mut(language)
        {
            language.sandbox.packages = language.kernel;
        }
    }
    config
}

fn index(raw: &RawIndex, directory: &Path, check: &mut Check) -> BTreeMap<Interpreter, Index> {
    let given = [(Interpreter::Python, &raw.python), (Interpreter::Node, &raw.javascript)];
    let mut found = BTreeMap::new();
    for (interpreter, text) in given {
        let Some(text) = text else { continue };
        match Index::parse(interpreter, text, directory) {
            Ok(index) => {
                found.insert(interpreter, index);
            }
            Err(message) => check.problem(index_key(interpreter), message),
        }
    }
    found
}

fn sets(
    raw: &BTreeMap<String, RawSet>,
    known: &BTreeSet<String>,
    languages: &BTreeMap<String, Arc<Language>>,
    check: &mut Check,
) -> BTreeMap<String, SetConfig> {
    if raw.len() > MAX_SETS {
        check.problem(
            "packages.sets",
            format!("there are {}; at most {MAX_SETS} can be named", raw.len()),
        );
        return BTreeMap::new();
    }
    let mut sets = BTreeMap::new();
    for (name, RawSet { language, requirements }) in raw {
        let at = |key: &str| format!("packages.sets.{name}{key}");
        if !is_name(name) {
            check.problem(
                at(""),
                format!(
                    "a set's name has small letters, digits and . _ -, begins with a letter or digit, and has at most \
                     {LONGEST_NAME} characters"
                ),
            );
            continue;
        }
        // As the policies of a disabled language, it is ignored.
        if known.contains(language) && !languages.contains_key(language) {
            continue;
        }
        let Some(interpreter) = interpreter(language, languages, &at(".language"), check) else {
            continue;
        };
        if requirements.is_empty() || requirements.len() > requirement::MOST {
            let message = format!(
                "needs from 1 to {} requirements, such as [{}]; there are {}",
                requirement::MOST,
                example(interpreter),
                requirements.len()
            );
            check.problem(at(".requirements"), message);
            continue;
        }
        let mut is_right = true;
        for (index, text) in requirements.iter().enumerate() {
            if let Err(error) = requirement::parse(interpreter, text) {
                let message = index::without_any_credentials(&error.to_string());
                check.problem(at(&format!(".requirements[{index}]")), message);
                is_right = false;
            }
        }
        if !is_right {
            continue;
        }
        let (name, language) = (name.clone(), language.clone());
        let set = SetConfig { name: name.clone(), language, requirements: requirements.clone() };
        sets.insert(name, set);
    }
    sets
}

/// The interpreter of a set's language.
fn interpreter(
    language: &str,
    languages: &BTreeMap<String, Arc<Language>>,
    path: &str,
    check: &mut Check,
) -> Option<Interpreter> {
    let interpreter = languages.get(language).and_then(|language| language.kernel);
    if interpreter.is_none() {
        let able = languages.values().filter(|language| language.kernel.is_some());
        let able = able.map(|language| language.name.clone()).collect::<Vec<_>>().join(", ");
        let why = match languages.contains_key(language) {
            true => "has no interpreter that can use packages",
            false => "is not a configured language",
        };
        let fix = match able.is_empty() {
            true => "set languageSettings.*.preload.interpreter".to_owned(),
            false => format!("use one of {able}"),
        };
        check.problem(path, format!("{language:?} {why}: {fix}"));
    }
    interpreter
}

const fn example(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "\"humanize==4.*\"",
        Interpreter::Node => "\"lodash@4\"",
    }
}

/// Whether a set can have this name: in the schema, in a path, and never taken for a requirement's version or option.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= LONGEST_NAME
        && name.as_bytes().first().is_some_and(is_plain)
        && name.bytes().all(|byte| is_plain(&byte) || b"._-".contains(&byte))
}

fn on_demand(raw: &RawOnDemand, check: &mut Check) -> Option<OnDemandConfig> {
    let RawOnDemand { enabled, allow, max_sets } = raw;
    let max_sets = max_sets.unwrap_or(MAX_PACKAGE_SETS);
    let max_sets = check.within("packages.onDemand.maxSets", max_sets, 1, 10_000, MAX_PACKAGE_SETS);
    let everything = ["*".to_owned()];
    let patterns = allow.as_deref().unwrap_or(&everything);
    if patterns.is_empty() && *enabled == Some(true) {
        check.problem(
            "packages.onDemand.allow",
            "is empty, so nothing could be asked for: name packages, such as [\"humanize\", \"types-*\"]",
        );
    }
    let mut allow = Vec::new();
    let (mut python, mut node) = (GlobSet::builder(), GlobSet::builder());
    for (index, pattern) in patterns.iter().enumerate() {
        let path = format!("packages.onDemand.allow[{index}]");
        let lower = pattern.to_lowercase();
        // Python's names are the same with any of these between their words; those of npm are not.
        let normalised = lower.replace(['_', '.'], "-");
        let parse = |text: &str| GlobBuilder::new(text).build();
        match (Glob::new(pattern), parse(&normalised), parse(&lower)) {
            (Ok(glob), Ok(of_python), Ok(of_node)) => {
                allow.push(glob);
                python.add(of_python);
                node.add(of_node);
            }
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                check.problem(path, format!("is not a pattern: {}", error.kind()));
            }
        }
    }
    match (python.build(), node.build()) {
        (Ok(python), Ok(node)) => {
            (*enabled == Some(true)).then_some(OnDemandConfig { allow, max_sets, python, node })
        }
        (Err(error), _) | (_, Err(error)) => {
            check.problem("packages.onDemand.allow", format!("can't be used: {}", error.kind()));
            None
        }
    }
}

fn tools(raw: &RawPackageTools, directory: &Path, check: &mut Check) -> ToolsConfig {
    let mut tool = |key: &str, given: &Option<String>| {
        let given = given.as_deref().unwrap_or(key);
        if given.trim().is_empty() || given.contains('\0') {
            check.problem(
                format!("packages.tools.{key}"),
                format!("is not the name of a program: give a path, or leave it out to use {key:?} from PATH"),
            );
        }
        if given.contains('/') { directory.join(given) } else { PathBuf::from(given) }
    };
    ToolsConfig { uv: tool("uv", &raw.uv), npm: tool("npm", &raw.npm) }
}
