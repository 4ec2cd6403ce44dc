//! Reads policies: files of rules in ast-grep's format, one file for each policy.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ast_grep_config::{
    GlobalRules, RuleCollection, RuleConfig, SerializableRuleConfig, Severity, from_multiple,
};
use isolator_pool::error_chain::error_chain;

use super::grammar::Grammar;

/// The policies that come with Isolator, by name.
const BUILT_IN: [(&str, &str); 1] = [("strict", include_str!("../../policies/strict.yml"))];

/// Largest file of rules, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The rules of one policy.
pub(super) struct Rules {
    pub(super) name: String,
    /// The text of its file.
    pub(super) text: String,
    /// Those for a file, by its name and grammar.
    pub(super) collection: RuleCollection<Grammar>,
    /// The languages that they are for.
    pub(super) grammars: Vec<Grammar>,
}

/// A policy that can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PolicyError {
    #[error("there is a policy {0:?} already; this one needs another name")]
    NameTaken(String),
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("has {0} bytes, but a policy can have {MAX_SIZE} at most")]
    TooLarge(u64),
    #[error("has no rules")]
    Empty,
    #[error("{}", error_chain(&**.0))]
    Invalid(#[source] Box<dyn Error + Send + Sync>),
    #[error("rule {rule}: {error}")]
    Rule {
        rule: String,
        #[source]
        error: Box<Self>,
    },
    #[error("needs an id, by which violations name it")]
    NoId,
    #[error("needs a message, which says what is not allowed")]
    NoMessage,
    #[error("another rule has the same id")]
    SameId,
    #[error("for TypeScript: {0}")]
    ForTypeScript(#[source] Box<Self>),
    #[error("{0} files can't be checked: there is no parser for them")]
    NoParser(String),
    #[error("{name:?} is not a policy; there are: {known}")]
    Unknown { name: String, known: String },
    #[error("{name:?} has no rules for {language}")]
    OtherLanguage { name: String, language: String },
    #[error(
        "there is no rule for {grammar}, so .{extension} files would run unchecked: add one, or remove the extension from \
         languageSettings.{language}.extensions"
    )]
    Unchecked { grammar: Grammar, extension: String, language: String },
}

impl PolicyError {
    fn invalid(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Invalid(Box::new(error))
    }
}

/// The policies that are built in.
///
/// # Errors
///
/// The name of one that can't be used, and why.
pub(super) fn built_in() -> Result<Vec<Arc<Rules>>, (&'static str, PolicyError)> {
    let policies = BUILT_IN.into_iter();
    policies
        .map(|(name, text)| Ok(Arc::new(read(name, text).map_err(|error| (name, error))?)))
        .collect()
}

/// Adds the policies of a folder: each file `NAME.yml` or `NAME.yaml` is one. Returns the paths of those that can't be used, and
/// why.
pub(super) fn add_folder(
    folder: &Path,
    known: &mut Vec<Arc<Rules>>,
) -> Vec<(PathBuf, PolicyError)> {
    let mut files = match list(folder) {
        Ok(files) => files,
        Err(error) => return vec![(folder.to_owned(), error.into())],
    };
    files.sort_unstable();
    let mut problems = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let rules = if known.iter().any(|policy| policy.name == name) {
            Err(PolicyError::NameTaken(name))
        } else {
            read_file(&name, &file)
        };
        match rules {
            Ok(rules) => known.push(Arc::new(rules)),
            Err(error) => problems.push((file, error)),
        }
    }
    problems
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_policy = |path: &Path| path.extension().is_some_and(|e| e == "yml" || e == "yaml");
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    paths.filter(|path| path.as_ref().map_or(true, |path| is_policy(path))).collect()
}

fn read_file(name: &str, file: &Path) -> Result<Rules, PolicyError> {
    let size = fs::metadata(file)?.len();
    if size > MAX_SIZE {
        return Err(PolicyError::TooLarge(size));
    }
    read(name, &fs::read_to_string(file)?)
}

/// Reads the rules of a policy, each a document of the YAML stream.
pub(super) fn read(name: &str, text: &str) -> Result<Rules, PolicyError> {
    let documents: Vec<SerializableRuleConfig<Grammar>> =
        from_multiple(text).map_err(PolicyError::invalid)?;
    if documents.is_empty() {
        return Err(PolicyError::Empty);
    }
    let mut ids = Vec::new();
    let mut rules = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let id = document.id.trim();
        add(document, &ids, &mut rules).map_err(|error| PolicyError::Rule {
            rule: match id {
                "" => (index + 1).to_string(),
                id => format!("{} ({id})", index + 1),
            },
            error: Box::new(error),
        })?;
        ids.push(id);
    }
    let mut grammars = Vec::new();
    for rule in &rules {
        if !grammars.contains(&rule.language) {
            grammars.push(rule.language);
        }
    }
    let collection = RuleCollection::try_new(rules).map_err(PolicyError::invalid)?;
    Ok(Rules { name: name.to_owned(), text: text.to_owned(), collection, grammars })
}

/// Adds the rule of a document, unless it is off. The rules before it have these ids.
fn add(
    document: &SerializableRuleConfig<Grammar>,
    ids: &[&str],
    rules: &mut Vec<RuleConfig<Grammar>>,
) -> Result<(), PolicyError> {
    let id = document.id.trim();
    if id.is_empty() {
        return Err(PolicyError::NoId);
    }
    if document.message.trim().is_empty() {
        return Err(PolicyError::NoMessage);
    }
    if ids.contains(&id) {
        return Err(PolicyError::SameId);
    }
    if document.severity == Severity::Off {
        return Ok(());
    }
    rules.push(compile(document)?);
    // Node.js runs both languages, and operators should not have to write each rule twice.
    if document.language == Grammar::JAVASCRIPT {
        let mut typed = document.clone();
        typed.language = Grammar::TYPESCRIPT;
        let compiled = compile(&typed);
        rules.push(compiled.map_err(|error| PolicyError::ForTypeScript(Box::new(error)))?);
    }
    Ok(())
}

fn compile(document: &SerializableRuleConfig<Grammar>) -> Result<RuleConfig<Grammar>, PolicyError> {
    let compiled = RuleConfig::try_from(document.clone(), &GlobalRules::default());
    compiled.map_err(PolicyError::invalid)
}
