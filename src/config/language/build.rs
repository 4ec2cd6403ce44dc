//! From the settings of the languages to the languages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use isolator_pool::engine::limits::{ByteSize, FixedLimits, Resources};
use isolator_pool::engine::preload::Preload;
use isolator_pool::engine::{Image, RootAccess, SandboxSpec, USER_HOME};
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use regex::Regex;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::settings::{HintSettings, LanguageSettings, PreloadSettings};
use super::{CommandPart, Hint, Language, syntax};
use crate::config::check::Check;
use crate::config::document::{merge, without_nulls};
use crate::config::similar::nearest;

/// A tmpfs gets a quarter of the memory. So a program has at least half of it when both file systems are full.
const TMPFS_SHARE: u64 = 4;

/// How similar the name of a built-in language must be to be suggested, from 0 to 1. TypeScript is not meant to be JavaScript.
const SIMILAR_LANGUAGE: f64 = 0.7;

/// Keys of a language, and the keys for all languages that they take their defaults from.
pub(in crate::config) const INHERITED: [(&str, &str); 7] = [
    ("memoryMB", "defaultMemoryMB"),
    ("cpus", "defaultCpus"),
    ("pidsLimit", "defaultPidsLimit"),
    ("pool.size", "pool.size"),
    ("pool.target", "pool.target"),
    ("pool.hot", "pool.hot"),
    ("pool.maxAge", "pool.maxAge"),
];

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

/// The built-in languages, in the form of `languageSettings`.
pub(in crate::config) fn built_in() -> &'static Value {
    static BUILT_IN: LazyLock<Value> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../languages.json")).expect("languages.json is JSON")
    });
    &BUILT_IN
}

/// The built-in language that a name was probably meant to be.
pub(crate) fn language_like(name: &str) -> Option<String> {
    let known = built_in().as_object().into_iter().flat_map(|languages| languages.keys());
    nearest(name, known, SIMILAR_LANGUAGE).filter(|near| *near != name).cloned()
}

/// Completes the settings of all languages, and makes the languages that are enabled. `common` has the keys for all
/// languages, and `template` the properties that all sandboxes have. Languages that `open` names have a writable root unless they
/// say otherwise.
pub(in crate::config) fn build(
    settings: &mut BTreeMap<String, LanguageSettings>,
    common: &Value,
    (template, open): (&SandboxSpec, &BTreeSet<&str>),
    check: &mut Check<'_>,
) -> BTreeMap<String, Arc<Language>> {
    let mut languages = BTreeMap::new();
    let defaults = defaults(common);
    for (name, written) in written(&check.document["languageSettings"]) {
        let mut all = defaults.clone();
        merge(&mut all, &written);
        let mut own = match LanguageSettings::deserialize(&all) {
            Ok(own) => own,
            Err(error) => {
                check.problem(format!("languageSettings.{name}"), error.to_string());
                continue;
            }
        };
        own.writable_root |= written["writableRoot"].is_null() && open.contains(&*name);
        if own.enabled
            && let Some(language) = language(&name, &mut own, &written, template, check)
        {
            languages.insert(name.clone(), Arc::new(language));
        }
        settings.insert(name, own);
    }
    if languages.is_empty() && check.problems.is_empty() {
        check.problem("languageSettings", "every language is disabled");
    }
    languages
}

/// The defaults of a language that come from the keys for all languages.
fn defaults(common: &Value) -> Value {
    let mut defaults = json!(LanguageSettings::default());
    for (own, key) in INHERITED {
        let value = key.split('.').fold(common, |at, key| &at[key]);
        *own.split('.').fold(&mut defaults, |at, key| &mut at[key]) = value.clone();
    }
    without_nulls(defaults)
}

/// The built-in languages with the operator's settings over them, and the languages of the operator.
fn written(operators: &Value) -> Map<String, Value> {
    let mut all = built_in().as_object().cloned().unwrap_or_default();
    for (name, own) in operators.as_object().into_iter().flatten() {
        let known = all.entry(name.clone()).or_insert_with(|| json!({}));
        // A checker and a command exclude each other.
        if own.get("syntaxCheck").is_some() {
            known["syntaxCheck"] = Value::Null;
        }
        merge(known, own);
    }
    all
}

/// A language, if it has an image. Keys that depend on others are set in the settings.
fn language(
    name: &str,
    settings: &mut LanguageSettings,
    written: &Value,
    template: &SandboxSpec,
    check: &mut Check<'_>,
) -> Option<Language> {
    let at = |key: &str| format!("languageSettings.{name}.{key}");
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "+#_-.".contains(c)) {
        check.problem(
            format!("languageSettings.{name}"),
            "a language's name can only have letters, digits and + # _ - .",
        );
    }
    let Some(image) = settings.image.clone().filter(|image| !image.trim().is_empty()) else {
        let near = language_like(name).map(|near| format!("; did you mean the language `{near}`?"));
        let near = near.unwrap_or_default();
        let message = format!("is required: the name of an image, such as \"debian:stable\"{near}");
        check.problem(at("image"), message);
        return None;
    };
    let extensions = &settings.extensions;
    if extensions.is_empty() || extensions.iter().any(|e| !is_extension(e)) {
        check
            .problem(at("extensions"), "is required: extensions with their dot, such as [\".sh\"]");
    }
    let usual = extensions.first().map_or("", String::as_str);
    let default_file = &*settings.default_file.get_or_insert_with(|| format!("main{usual}"));
    let any = WorkspaceLimits { files: 1, total: 0 };
    if let Err(error) = WorkspaceBuilder::new(any).add(default_file, Vec::new()) {
        check.problem(at("defaultFile"), error.to_string());
    }
    let command = CommandPart::parse(&settings.command);
    if !command.iter().any(|part| matches!(part, CommandPart::File | CommandPart::Sources)) {
        check.problem(
            at("command"),
            "is required: a program and its arguments with \"{file}\" for the program's file, such as \
             [\"bash\", \"{file}\"]",
        );
    }
    if let Some(bad) =
        settings.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        check.problem(at("env"), format!("{bad:?} is not the name of a variable"));
    }
    if settings.writable_root && written["env"]["HOME"].is_null() {
        settings.env.insert("HOME".to_owned(), USER_HOME.to_owned());
    }
    let mut language = Language {
        name: name.to_owned(),
        description: settings.description.clone(),
        extensions: settings.extensions.clone(),
        default_file: default_file.clone(),
        command,
        env: settings.env.clone(),
        hints: hints(&settings.hints, &at("hints"), check),
        kernel: settings.preload.interpreter,
        syntax: settings.syntax_check.as_ref().and_then(|it| syntax::check(it, &at, check)),
        sandbox: sandbox(settings, image, template, &at, check),
        pool: settings.pool.check(&written["pool"], &at("pool"), check),
    };
    let preload = &mut settings.preload;
    language.sandbox.preload = self::preload(preload, &written["preload"], &language, &at, check);
    preload.enabled = language.sandbox.preload.is_some();
    Some(language)
}

fn is_extension(extension: &str) -> bool {
    extension.len() > 1 && extension.starts_with('.') && !extension.contains(['/', '\0'])
}

fn hints(own: &[HintSettings], path: &str, check: &mut Check<'_>) -> Vec<Hint> {
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
    settings: &mut LanguageSettings,
    image: String,
    template: &SandboxSpec,
    at: &impl Fn(&str) -> String,
    check: &mut Check<'_>,
) -> SandboxSpec {
    let memory = settings.memory;
    let mut tmpfs = |key: &str, size: &mut Option<ByteSize>| {
        let quarter = ByteSize::bytes(memory.as_bytes() / TMPFS_SHARE);
        let half = (memory.as_bytes() / 2) >> 20;
        if let Some(size) = *size {
            check.within(&at(key), size.as_mib(), 1, half.max(1));
        }
        *size.get_or_insert(quarter)
    };
    let workspace = tmpfs("workspaceMB", &mut settings.workspace);
    let tmp = tmpfs("tmpMB", &mut settings.tmp);
    let user = parse_user(&settings.user).unwrap_or_else(|| {
        let message = "must be a numeric user and group other than root's, such as \"1000:1000\"";
        check.problem(at("user"), message);
        template.user
    });
    let (root, workdir) = match settings.writable_root {
        true => (RootAccess::Open, USER_HOME),
        false => (template.root, &*template.workdir),
    };
    SandboxSpec {
        image: Image { name: image, ..Image::default() },
        root,
        workdir: workdir.to_owned(),
        resources: Resources { memory, cpu: settings.cpus },
        limits: FixedLimits { pids: settings.pids_limit, workspace, tmp, ..template.limits },
        user,
        ..template.clone()
    }
}

fn preload(
    settings: &PreloadSettings,
    written: &Value,
    language: &Language,
    at: &impl Fn(&str) -> String,
    check: &mut Check<'_>,
) -> Option<Preload> {
    let modules = settings.modules.clone();
    let is_name = |module: &String| {
        !module.is_empty() && !module.contains(|c: char| c == ',' || c.is_whitespace() || c == '\0')
    };
    if let Some(bad) = modules.iter().find(|module| !is_name(module)) {
        check.problem(at("preload.modules"), format!("{bad:?} is not the name of a module"));
    }
    let Some(interpreter) = settings.interpreter else {
        if written["enabled"] == true || !modules.is_empty() {
            check.problem(at("preload.interpreter"), "is required: \"python\" or \"node\"");
        }
        return None;
    };
    let file = &language.default_file;
    settings.enabled.then(|| Preload {
        interpreter,
        argv: language.argv(file, std::slice::from_ref(file), language.sandbox.resources.memory),
        env: language.env.clone(),
        modules,
        memory: settings.memory,
        fork: settings.fork,
    })
}

fn parse_user(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    let (user, group) = (user.parse().ok()?, group.parse().ok()?);
    (user != 0 && group != 0).then_some((user, group))
}
