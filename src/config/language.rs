//! The languages: the built-in settings, overridden by the operator's, and validated.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::engine::limits::{ByteSize, FixedLimits, Resources};
use isolator_pool::engine::preload::{Interpreter, Preload};
use isolator_pool::engine::{Image, SandboxSpec};
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use regex::Regex;

use super::check::Check;
use super::common::Common;
use super::defaults::{MAX_PIDS, MIN_PIDS, PIDS};
use super::load::language_like;
use super::raw::{RawConfig, RawInterpreter, RawLanguage, RawPreload};
use super::{CommandPart, Hint, Language, RequestLimits, command_line, pool, syntax};

const USER: (u32, u32) = (1000, 1000);

/// A tmpfs gets a quarter of the memory. So a program has at least half of it when both file systems are full.
const TMPFS_SHARE: u64 = 4;

/// Each file of a tmpfs takes about 1 KiB of kernel memory.
const INODES: u32 = 8192;

/// Twice what Python takes with numpy and pandas.
pub(super) const PRELOAD_MEMORY_MB: u64 = 128;

/// Python's multiprocessing keeps its locks there; they are small.
const SHM: ByteSize = ByteSize::mib(16);

/// Variables that give a program a home and a folder for temporary files in any image.
const ENV: [(&str, &str); 2] = [("HOME", "/tmp"), ("TMPDIR", "/tmp")];

/// Advice for programs in any language, with the messages that it is for.
const COMMON_HINTS: [(&str, &str); 4] = [
    (
        "(?i)network is unreachable|temporary failure in name resolution|name or service not known|\
         getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|ENETUNREACH|dial tcp[^\\n]*(?:lookup|unreachable)|\
         NameResolutionError|could not resolve host|'remote-https?' is not a git command|cannot run ssh:",
        "the sandbox has no network: send the data as files instead",
    ),
    // In the words of the shells, of Go, make and env. A path is no command of the image.
    (
        "(?m)^\\S*: (?:line )?\\d+: ([^:\\s/]+): (?:command )?not found$|\
         exec: \"([^\"/]+)\": executable file not found|^make: ([^:\\s/]+): No such file or directory$|\
         ^env: ['‘]([^'’/]+)['’]: No such file",
        "the image has no command '$1$2$3$4', and nothing can be installed while the program runs: do it in the \
         program's own language, or ask the operator for an image that has the command",
    ),
    // In the words of Python and Node.js, which say the same if the command's working directory is missing.
    (
        "in _execute_child\\n(?: +.*\\n)+FileNotFoundError: \\[Errno 2\\] No such file or directory: '([^'/\\s]+)'|\
         spawn ([^\\s/]+) ENOENT",
        "the image has no command '$1$2', or the folder in which it should run is missing; nothing can be installed \
         while the program runs: do it in the program's own language, or ask the operator for an image that has the \
         command",
    ),
    (
        "returned non-zero exit status 127\\b",
        "exit status 127 means that the shell found no such command, and nothing can be installed while the program \
         runs: do it in the program's own language",
    ),
];

pub(super) fn languages(
    raw: &RawConfig,
    built_in: BTreeMap<String, RawLanguage>,
    common: &Common,
    limits: &mut RequestLimits,
    check: &mut Check,
) -> BTreeMap<String, Arc<Language>> {
    let mut languages = BTreeMap::new();
    for (name, settings) in merged(built_in, &raw.language_settings) {
        if settings.enabled == Some(false) {
            continue;
        }
        if let Some(language) = language(&name, settings, common, check) {
            // A request can ask for what its language has. If the operator set the limit, it must not be less.
            let own = language.sandbox.resources;
            if raw.limits.max_memory_mb.is_none() {
                limits.max_memory = limits.max_memory.max(own.memory);
            } else if own.memory > limits.max_memory {
                let message = format!("is less than the {} of {name}", own.memory);
                check.problem("limits.maxMemoryMB", message);
            }
            if raw.limits.max_cpus.is_none() {
                limits.max_cpu = limits.max_cpu.max(own.cpu);
            } else if own.cpu > limits.max_cpu {
                check.problem("limits.maxCpus", format!("is less than the {} of {name}", own.cpu));
            }
            languages.insert(name, Arc::new(language));
        }
    }
    if languages.is_empty() && check.problems.is_empty() {
        check.problem("languageSettings", "every language is disabled");
    }
    languages
}

/// All languages, with the operator's settings over those that are built in.
pub(super) fn merged(
    mut built_in: BTreeMap<String, RawLanguage>,
    own: &BTreeMap<String, RawLanguage>,
) -> BTreeMap<String, RawLanguage> {
    for (name, settings) in own {
        let settings = match built_in.remove(name) {
            Some(known) => merge(known, settings.clone()),
            None => settings.clone(),
        };
        built_in.insert(name.clone(), settings);
    }
    built_in
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
        preload: RawPreload {
            enabled: own.preload.enabled.or(built_in.preload.enabled),
            interpreter: own.preload.interpreter.or(built_in.preload.interpreter),
            modules: own.preload.modules.or(built_in.preload.modules),
            memory_mb: own.preload.memory_mb.or(built_in.preload.memory_mb),
            fork: own.preload.fork.or(built_in.preload.fork),
        },
        hints: own.hints.or(built_in.hints),
        syntax_check: own.syntax_check.or(built_in.syntax_check),
    }
}

fn language(name: &str, raw: RawLanguage, common: &Common, check: &mut Check) -> Option<Language> {
    let at = |key: &str| format!("languageSettings.{name}.{key}");
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "+#_-.".contains(c)) {
        check.problem(
            format!("languageSettings.{name}"),
            "a language's name can only have letters, digits and + # _ - .",
        );
    }
    let Some(image) = raw.image.as_ref().filter(|image| !image.trim().is_empty()) else {
        let near = language_like(name).map(|near| format!("; did you mean the language `{near}`?"));
        let near = near.unwrap_or_default();
        let message = format!("is required: the name of an image, such as \"debian:stable\"{near}");
        check.problem(at("image"), message);
        return None;
    };
    let image = Image { name: image.clone(), ..Image::default() };
    let extensions = raw.extensions.clone().unwrap_or_default();
    if extensions.is_empty() || extensions.iter().any(|e| !is_extension(e)) {
        check
            .problem(at("extensions"), "is required: extensions with their dot, such as [\".sh\"]");
    }
    let usual = extensions.first().cloned().unwrap_or_default();
    let default_file = raw.default_file.clone().unwrap_or_else(|| format!("main{usual}"));
    let any = WorkspaceLimits { files: 1, total: 0 };
    if let Err(error) = WorkspaceBuilder::new(any).add(&default_file, Vec::new()) {
        check.problem(at("defaultFile"), error.to_string());
    }
    let command = CommandPart::parse(raw.command.as_deref().unwrap_or_default());
    if !command.iter().any(|part| matches!(part, CommandPart::File | CommandPart::Sources)) {
        check.problem(
            at("command"),
            "is required: a program and its arguments with \"{file}\" for the program's file, such as \
             [\"bash\", \"{file}\"]",
        );
    }
    let mut env: BTreeMap<String, String> =
        ENV.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(raw.env.clone().unwrap_or_default());
    if let Some(bad) = env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        check.problem(at("env"), format!("{bad:?} is not the name of a variable"));
    }
    let mut sandbox = sandbox(&raw, image, common, &at, check);
    sandbox.preload =
        preload(&raw.preload, &command, &default_file, &env, sandbox.resources.memory, &at, check);
    Some(Language {
        name: name.to_owned(),
        description: raw.description.clone().unwrap_or_default(),
        extensions,
        default_file,
        command,
        env,
        hints: hints(&raw, &at("hints"), check),
        kernel: raw.preload.interpreter.map(interpreter),
        syntax: raw.syntax_check.as_ref().and_then(|raw| syntax::check(raw, &at, check)),
        sandbox,
        pool: pool::pool(&raw.pool, &common.pool, &at("pool"), check),
    })
}

fn is_extension(extension: &str) -> bool {
    extension.len() > 1 && extension.starts_with('.') && !extension.contains(['/', '\0'])
}

fn hints(raw: &RawLanguage, path: &str, check: &mut Check) -> Vec<Hint> {
    let own = raw.hints.as_deref().unwrap_or_default();
    let own = own.iter().map(|hint| (hint.pattern.as_str(), hint.advice.as_str()));
    let mut hints = Vec::new();
    for (index, (pattern, advice)) in own.chain(COMMON_HINTS).enumerate() {
        match Regex::new(pattern) {
            Ok(pattern) => hints.push(Hint { pattern, advice: advice.to_owned() }),
            Err(error) => check.pattern(format!("{path}[{index}].pattern"), &error),
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
    // A wrong default is reported once, under its own key.
    let path = |own: bool, key: &str, default: &str| {
        if own { at(key) } else { default.to_owned() }
    };
    let memory_path = path(raw.memory_mb.is_some(), "memoryMB", "defaultMemoryMB");
    let memory = check.memory(&memory_path, raw.memory_mb.unwrap_or(common.memory_mb));
    let cpu_path = path(raw.cpus.is_some(), "cpus", "defaultCpus");
    let cpu = check.cpu(&cpu_path, raw.cpus.unwrap_or(common.cpus));
    let pids_path = path(raw.pids_limit.is_some(), "pidsLimit", "defaultPidsLimit");
    let pids = raw.pids_limit.unwrap_or(common.pids);
    let pids = check.within(&pids_path, pids, MIN_PIDS, MAX_PIDS, PIDS);
    let mut tmpfs = |key: &str, mb: Option<u64>| {
        let quarter = ByteSize::bytes(memory.as_bytes() / TMPFS_SHARE);
        let Some(mb) = mb else { return quarter };
        let half = (memory.as_bytes() / 2) >> 20;
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
        preload: None,
        packages: None,
        allow_unlimited: common.allow_unlimited,
    }
}

fn interpreter(raw: RawInterpreter) -> Interpreter {
    match raw {
        RawInterpreter::Python => Interpreter::Python,
        RawInterpreter::Node => Interpreter::Node,
    }
}

fn preload(
    raw: &RawPreload,
    command: &[CommandPart],
    default_file: &str,
    env: &BTreeMap<String, String>,
    sandbox_memory: ByteSize,
    at: &impl Fn(&str) -> String,
    check: &mut Check,
) -> Option<Preload> {
    let mb = raw.memory_mb.unwrap_or(PRELOAD_MEMORY_MB);
    let mb = check.within(&at("preload.memoryMB"), mb, 1, 1 << 20, PRELOAD_MEMORY_MB);
    let modules = raw.modules.clone().unwrap_or_default();
    let is_name = |module: &String| {
        !module.is_empty() && !module.contains(|c: char| c == ',' || c.is_whitespace() || c == '\0')
    };
    if let Some(bad) = modules.iter().find(|module| !is_name(module)) {
        check.problem(at("preload.modules"), format!("{bad:?} is not the name of a module"));
    }
    let Some(interpreter) = raw.interpreter else {
        if raw.enabled == Some(true) || !modules.is_empty() {
            check.problem(at("preload.interpreter"), "is required: \"python\" or \"node\"");
        }
        return None;
    };
    if raw.enabled == Some(false) {
        return None;
    }
    let default_file = default_file.to_owned();
    Some(Preload {
        interpreter: self::interpreter(interpreter),
        argv: command_line(
            command,
            &default_file,
            std::slice::from_ref(&default_file),
            sandbox_memory,
        ),
        env: env.clone(),
        modules,
        memory: ByteSize::mib(mb),
        fork: raw.fork.unwrap_or(true),
    })
}

fn parse_user(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    let (user, group) = (user.parse().ok()?, group.parse().ok()?);
    (user != 0 && group != 0).then_some((user, group))
}
