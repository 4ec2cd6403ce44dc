//! Reads policies: files of rules in ast-grep's format, one file for each policy.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ast_grep_config::{
    GlobalRules, RuleCollection, RuleConfig, SerializableRuleConfig, Severity, from_multiple,
};

use super::grammar::Grammar;

/// The policies that come with Isolator, by name.
const BUILT_IN: [(&str, &str); 1] = [("strict", include_str!("../../policies/strict.yml"))];

/// Largest file of rules, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The rules of one policy.
pub(super) struct Rules {
    /// The file they were read from.
    pub(super) text: String,
    /// Those for a file, by its name and grammar.
    pub(super) collection: RuleCollection<Grammar>,
    /// What the rules are for.
    pub(super) grammars: Vec<Grammar>,
}

/// Policies by name.
pub(super) type Known = BTreeMap<String, Arc<Rules>>;

/// The policies that are built in.
pub(super) fn built_in() -> Result<Known, String> {
    BUILT_IN
        .into_iter()
        .map(|(name, text)| {
            let rules = read(text).map_err(|problem| format!("{name}: {problem}"))?;
            Ok((name.to_owned(), Arc::new(rules)))
        })
        .collect()
}

/// Adds the policies of a folder: each file `NAME.yml` or `NAME.yaml` is one. Returns what is wrong, each
/// with the name of its file.
pub(super) fn add_folder(folder: &Path, known: &mut Known) -> Vec<String> {
    let mut files = match list(folder) {
        Ok(files) => files,
        Err(error) => return vec![format!("{}: {error}", folder.display())],
    };
    files.sort();
    let mut problems = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let rules = if known.contains_key(&name) {
            Err(format!("there is a policy {name:?} already; this one needs another name"))
        } else {
            read_file(&file)
        };
        match rules {
            Ok(rules) => {
                known.insert(name, Arc::new(rules));
            }
            Err(problem) => problems.push(format!("{}: {problem}", file.display())),
        }
    }
    problems
}

fn list(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let is_policy = |path: &Path| path.extension().is_some_and(|e| e == "yml" || e == "yaml");
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    paths.filter(|path| path.as_ref().map_or(true, |path| is_policy(path))).collect()
}

fn read_file(file: &Path) -> Result<Rules, String> {
    let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > MAX_SIZE {
        return Err(format!("has {size} bytes, but a policy can have {MAX_SIZE} at most"));
    }
    read(&fs::read_to_string(file).map_err(|error| error.to_string())?)
}

/// Reads the rules of a policy, each a document of the YAML stream.
pub(super) fn read(text: &str) -> Result<Rules, String> {
    let documents: Vec<SerializableRuleConfig<Grammar>> =
        from_multiple(text).map_err(|error| with_causes(&error))?;
    if documents.is_empty() {
        return Err("has no rules".to_owned());
    }
    let mut ids = BTreeSet::new();
    let mut rules = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        let id = document.id.trim().to_owned();
        let named = |problem: &str| match id.as_str() {
            "" => format!("rule {}: {problem}", index + 1),
            id => format!("rule {} ({id}): {problem}", index + 1),
        };
        if id.is_empty() {
            return Err(named("needs an id, by which violations name it"));
        }
        if document.message.trim().is_empty() {
            return Err(named("needs a message, which says what is not allowed"));
        }
        if !ids.insert(id.clone()) {
            return Err(named("another rule has the same id"));
        }
        if document.severity == Severity::Off {
            continue;
        }
        rules.push(compile(&document).map_err(|problem| named(&problem))?);
        // Node.js runs both languages, and nobody should have to write each rule twice.
        if document.language == Grammar::JAVASCRIPT {
            let mut typed = document.clone();
            typed.language = Grammar::TYPESCRIPT;
            let compiled = compile(&typed);
            rules.push(compiled.map_err(|problem| named(&format!("for TypeScript: {problem}")))?);
        }
    }
    let mut grammars = Vec::new();
    for rule in &rules {
        if !grammars.contains(&rule.language) {
            grammars.push(rule.language);
        }
    }
    let collection = RuleCollection::try_new(rules).map_err(|error| error.to_string())?;
    Ok(Rules { text: text.to_owned(), collection, grammars })
}

fn compile(document: &SerializableRuleConfig<Grammar>) -> Result<RuleConfig<Grammar>, String> {
    RuleConfig::try_from(document.clone(), &GlobalRules::default())
        .map_err(|error| with_causes(&error))
}

/// An error and what caused it; the library's outermost ones say little.
fn with_causes(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    message
}
