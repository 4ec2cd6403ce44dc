//! Loads a configuration from a file and the environment.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;

use super::check::{Check, Problem};
use super::environment::{self, Override};
use super::language::built_in;
use super::root::{Config, Settings, shape};
use super::{document, index};

/// Name of the file.
pub const FILE_NAME: &str = "isolator_config.json";

/// Largest file. A larger one is not a configuration, or is a device.
const MAX_FILE: u64 = 4 << 20;

/// How a configuration file was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// `--config`.
    Option,
    /// `ISOLATOR_CONFIG`.
    Variable,
    /// It is in one of the usual places.
    Place,
}

/// The reason why a configuration can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{} {}", .file.display(), why_unreadable(*.named_by, .error))]
    Read {
        /// The file.
        file: PathBuf,
        /// How it was chosen.
        named_by: NamedBy,
        /// The system's error. It is in the message, so it is no `source`.
        error: io::Error,
    },
    /// The file or the environment is not valid.
    #[error("{}:\n{}", heading(.file.as_deref()), list(.problems))]
    Invalid {
        /// The file, if there is one.
        file: Option<PathBuf>,
        /// All errors.
        problems: Vec<Problem>,
    },
}

fn why_unreadable(named_by: NamedBy, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::IsADirectory => format!("is a folder; name the file in it ({FILE_NAME})"),
        io::ErrorKind::InvalidData => "is not UTF-8 text; save it as UTF-8".to_owned(),
        _ => format!("can't be read: {error}"),
    };
    match named_by {
        NamedBy::Option => format!("(named by --config) {why}"),
        NamedBy::Variable => format!("(named by ISOLATOR_CONFIG) {why}"),
        NamedBy::Place => why,
    }
}

/// The first line of a list of problems.
fn heading(file: Option<&Path>) -> String {
    file.map_or("the environment".to_owned(), |file| file.display().to_string())
}

fn list(problems: &[Problem]) -> String {
    let line = |problem: &Problem| format!("  {problem}");
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// Loads the file, or the one that is in one of the usual places, or the defaults if there is none. The
    /// environment overrides them.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let found = file.map(|file| (file.to_owned(), NamedBy::Option)).or_else(find);
        let Some((file, named_by)) = found else {
            let prompts = user_directory().unwrap_or_default();
            return assemble("{}", None, &prompts, env::vars_os())
                .map_err(|problems| ConfigError::Invalid { file: None, problems });
        };
        let text = read(&file).map_err(|error| ConfigError::Read {
            file: file.clone(),
            named_by,
            error,
        })?;
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        assemble(&text, Some(file.clone()), &directory, env::vars_os())
            .map_err(|problems| ConfigError::Invalid { file: Some(file), problems })
    }

    /// Reads and validates a configuration whose relative paths start at `directory`.
    ///
    /// # Errors
    ///
    /// All problems that were found.
    pub fn parse(
        text: &str,
        file: Option<PathBuf>,
        directory: &Path,
    ) -> Result<Self, Vec<Problem>> {
        assemble(text, file, directory, [])
    }
}

/// The configuration of a text and environment variables.
pub(super) fn assemble(
    text: &str,
    file: Option<PathBuf>,
    directory: &Path,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, Vec<Problem>> {
    let mut document = document::read(text)?;
    let sections = [&document["languageSettings"], built_in(), &document["packages"]["sets"]];
    let names =
        sections.into_iter().filter_map(Value::as_object).flat_map(|section| section.keys());
    let names: Vec<_> = names.cloned().collect();
    let mut of_variables = Vec::new();
    let overrides = environment::overrides(shape(), variables, &names, &mut of_variables);
    ignore_without_effect(&mut document, &overrides);
    let mut problems = shape().check(&document);
    problems.append(&mut of_variables);
    if !problems.is_empty() {
        return Err(problems);
    }
    environment::apply(&overrides, &mut document);
    let dotted = |it: &Override| (it.path.join("."), it.variable.clone());
    let variables: BTreeMap<_, _> = overrides.iter().map(dotted).collect();
    let mut config = Config::deserialize(&document).map_err(|error| {
        vec![Problem { path: "the file".to_owned(), message: error.to_string() }]
    })?;
    let mut check = Check { document: &document, directory, problems };
    config.complete(&mut check);
    if !check.problems.is_empty() {
        return Err(under_variables(check.problems, &variables));
    }
    // From here on it is only shown.
    index::hide_credentials(&mut document);
    config.file = file;
    config.settings = Settings { document, variables };
    Ok(config)
}

/// Removes numbers out of their bounds that have no effect: those of languages that are disabled, and the target of
/// pools whose size is fixed.
fn ignore_without_effect(document: &mut Value, overrides: &[Override]) {
    let mut all = document.clone();
    for Override { path, value, .. } in overrides {
        let nested = |inside: Value, key: &String| {
            Value::Object([(key.clone(), inside)].into_iter().collect())
        };
        document::merge(&mut all, &path.iter().rev().fold(value.clone(), nested));
    }
    let mut target_holds = all["pool"]["size"].is_object();
    for (name, language) in all["languageSettings"].as_object().into_iter().flatten() {
        if language["enabled"] != false {
            target_holds |= language["pool"]["size"].is_object();
        } else if let Some(of_language) =
            shape().inside("languageSettings").and_then(|all| all.inside(name))
            && let Some(settings) =
                document.get_mut("languageSettings").and_then(|all| all.get_mut(name))
        {
            of_language.remove_out_of_bounds(settings);
        }
    }
    if !target_holds
        && let Some(of_target) = shape().inside("pool").and_then(|pool| pool.inside("target"))
        && let Some(Value::Object(pool)) = document.get_mut("pool")
    {
        pool.retain(|key, value| key != "target" || !of_target.is_out_of_bounds(value));
    }
}

/// Names the variables instead of the keys that they set.
fn under_variables(problems: Vec<Problem>, variables: &BTreeMap<String, String>) -> Vec<Problem> {
    let renamed = |problem: Problem| match variables.get(&problem.path) {
        Some(variable) => Problem { path: variable.clone(), ..problem },
        None => problem,
    };
    problems.into_iter().map(renamed).collect()
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(file)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it is larger than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// The configuration file if none is given: from `ISOLATOR_CONFIG`, the current directory, or the user's
/// configuration directory.
fn find() -> Option<(PathBuf, NamedBy)> {
    // An empty variable is ignored: bundles set it even if their user chose no file.
    if let Some(file) = env::var_os("ISOLATOR_CONFIG").filter(|file| !file.is_empty()) {
        return Some((file.into(), NamedBy::Variable));
    }
    let here = PathBuf::from(FILE_NAME);
    let users = user_directory().map(|directory| directory.join(FILE_NAME));
    let found = [Some(here), users].into_iter().flatten().find(|file| file.exists())?;
    Some((found, NamedBy::Place))
}

/// The folder of the user's configuration, which is used from every folder.
pub fn user_directory() -> Option<PathBuf> {
    let base = env::var_os("XDG_CONFIG_HOME").filter(|base| !base.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".config")))?;
    Some(base.join("isolator"))
}
