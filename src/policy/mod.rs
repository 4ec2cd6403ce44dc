//! Policies: what an operator forbids in programs, checked before they run.
//!
//! A policy is a file of rules in the format of ast-grep. `rules.rs` reads it, `check.rs` checks a file
//! against it, in a process without rights (`checker/`). Policies are a lint; the sandbox is the protection.

mod check;
mod checker;
mod grammar;
mod rules;
mod spelling;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolator_pool::pool::admission::{AdmissionError, Client};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use checker::Checkers;
pub use checker::process::run as run_checker;
use grammar::Grammar;
use rules::Rules;

/// Most violations that are listed.
const MAX_LISTED: usize = 20;

/// For all files of a request. An ordinary one takes a millisecond.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Extra time for a check that does not notice its timeout, and for one that waits for such a check.
const GRACE: Duration = Duration::from_secs(3);

/// The rule that is reported for a file that can't be checked.
const NOT_CHECKED: &str = "not-checked";

/// What policies need to know of a language.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LanguageFiles<'a> {
    /// The language's name.
    pub(crate) name: &'a str,
    /// Extensions of its files with the dot, the usual one first.
    pub(crate) extensions: &'a [String],
}

/// What is wrong with the policies, and the path of the key that it is wrong with.
pub(crate) type Problem = (String, String);

/// The policies of all languages.
#[derive(Debug, Default)]
pub struct Policies {
    languages: BTreeMap<String, Arc<Policy>>,
    checkers: Checkers,
}

/// What is forbidden in one language.
struct Policy {
    names: Vec<String>,
    rules: Vec<Arc<Rules>>,
    /// The language's extensions with their dots, the usual one first.
    extensions: Vec<String>,
    /// For each extension, without its dot.
    grammars: BTreeMap<String, Grammar>,
    /// For an entrypoint with another extension.
    usual: Option<Grammar>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}

/// A file of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name in the workspace.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
    /// Whether it is what the language's command runs, whatever its name.
    pub is_entrypoint: bool,
}

/// A place in a program where it breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Violation {
    /// The file.
    pub file: String,
    /// Identifier of the rule.
    pub rule: String,
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
    /// What is not allowed.
    pub message: String,
}

/// So many programs are checked that one had no turn. Nothing is known against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("too many programs wait to be checked against the policy of this server: {0}")]
pub struct NoTurn(#[from] pub AdmissionError);

/// What was found in a request's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first of the violations.
    pub listed: Vec<Violation>,
    /// How many more there are.
    pub more: u64,
}

impl Findings {
    /// Whether the policy has nothing against the program.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    fn add(&mut self, violation: impl FnOnce() -> Violation) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(violation());
        } else {
            self.more += 1;
        }
    }

    fn extend(&mut self, Self { listed, more }: Self) {
        listed.into_iter().for_each(|violation| self.add(|| violation));
        self.more = self.more.saturating_add(more);
    }

    fn unreadable(file: &str, why: impl ToString) -> Violation {
        Violation {
            file: file.to_owned(),
            rule: NOT_CHECKED.to_owned(),
            line: 1,
            column: 1,
            message: why.to_string(),
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, Violation { file, rule, line, column, message }) in
            self.listed.iter().enumerate()
        {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{file}:{line}:{column}: {message} ({rule})")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl Policies {
    /// Reads the policies of a folder, and applies policies by name to languages. Adds what is wrong to
    /// `problems`, with the path of the key.
    pub(crate) fn load(
        folder: Option<&Path>,
        apply: &BTreeMap<String, Vec<String>>,
        languages: &[LanguageFiles<'_>],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut problem = |path: String, message: String| problems.push((path, message));
        let mut known = rules::built_in().unwrap_or_else(|message| {
            problem("policies".to_owned(), message);
            BTreeMap::new()
        });
        for message in folder.map_or(Vec::new(), |folder| rules::add_folder(folder, &mut known)) {
            problem("policies.folder".to_owned(), message);
        }
        let mut policies = Self::default();
        for (name, wanted) in apply.iter().filter(|(_, wanted)| !wanted.is_empty()) {
            let path = format!("policies.apply.{name}");
            let Some(language) = languages.iter().find(|language| language.name == name) else {
                let names: Vec<_> = languages.iter().map(|language| language.name).collect();
                problem(
                    path,
                    format!("is not a configured language: use one of {}", names.join(", ")),
                );
                continue;
            };
            match Policy::new(wanted, &known, language) {
                Ok(policy) => {
                    policies.languages.insert(name.clone(), Arc::new(policy));
                }
                Err((index, message)) => {
                    let path = index.map_or(path.clone(), |index| format!("{path}[{index}]"));
                    problem(path, message);
                }
            }
        }
        let languages = &policies.languages;
        policies.checkers = Checkers::new(
            languages.iter().map(|(language, policy)| (language.clone(), &**policy)).collect(),
        );
        policies
    }

    /// Whether programs in a language have to be checked.
    pub fn apply_to(&self, language: &str) -> bool {
        self.languages.contains_key(language)
    }

    /// Names of the policies for programs in a language.
    pub fn names(&self, language: &str) -> &[String] {
        self.languages.get(language).map_or(&[], |policy| &policy.names)
    }

    /// Looks for what is forbidden in the files of a program. A file that can't be read in time is
    /// forbidden, too. The client is the one who wants to run it.
    ///
    /// # Errors
    ///
    /// When the program had no turn, because too many others wait for theirs. Then it must not run.
    pub async fn check(
        &self,
        language: &str,
        files: Vec<SourceFile>,
        client: &Client,
    ) -> Result<Findings, NoTurn> {
        let Some(policy) = self.languages.get(language) else { return Ok(Findings::default()) };
        let name = files.first().map_or(String::new(), |file| file.name.clone());
        let (readable, mut found) = policy.readable(files);
        if readable.is_empty() {
            return Ok(found);
        }
        // The time for a check does not begin before its turn.
        let _turn = self.checkers.turn(client).await?;
        let check = self.checkers.check(language, &readable);
        match tokio::time::timeout(CHECK_TIMEOUT + GRACE, check).await {
            Ok(Ok(more)) => found.extend(more),
            Ok(Err(error)) => {
                tracing::error!(%error, "a program could not be checked against its policy");
                let why = "the check itself failed; the server's log says why";
                found.add(|| Findings::unreadable(&name, why));
            }
            Err(_) => found.add(|| Findings::unreadable(&name, check::Unreadable::TooSlow)),
        }
        Ok(found)
    }
}

impl Policy {
    /// What is wrong is told with the index of the name, if it is one name's.
    fn new(
        wanted: &[String],
        known: &rules::Known,
        language: &LanguageFiles<'_>,
    ) -> Result<Self, (Option<usize>, String)> {
        let grammars = grammars_of(language.extensions).map_err(|message| (None, message))?;
        let mut rules = Vec::new();
        let mut ruled = BTreeSet::new();
        for (index, name) in wanted.iter().enumerate() {
            let policy = known.get(name).ok_or_else(|| {
                let names: Vec<_> = known.keys().cloned().collect();
                (Some(index), format!("{name:?} is not a policy; there are: {}", names.join(", ")))
            })?;
            let is_for = |grammar: &&Grammar| policy.grammars.contains(grammar);
            ruled.extend(grammars.values().filter(is_for).map(ToString::to_string));
            if !grammars.values().any(|grammar| policy.grammars.contains(grammar)) {
                let message = format!("{name:?} has no rules for {}", language.name);
                return Err((Some(index), message));
            }
            rules.push(Arc::clone(policy));
        }
        let bare = grammars.iter().find(|(_, grammar)| !ruled.contains(&grammar.to_string()));
        if let Some((extension, grammar)) = bare {
            let message = format!(
                "there is no rule for {grammar}, so .{extension} files would run unchecked: add one, or \
                 remove the extension from languageSettings.{}.extensions",
                language.name
            );
            return Err((None, message));
        }
        Self::of_rules(wanted.to_vec(), rules, language.extensions)
            .map_err(|message| (None, message))
    }

    /// A policy of these rules for files with these extensions.
    fn of_rules(
        names: Vec<String>,
        rules: Vec<Arc<Rules>>,
        extensions: &[String],
    ) -> Result<Self, String> {
        let grammars = grammars_of(extensions)?;
        let usual = extensions.first().and_then(|usual| grammars.get(&usual[1..]).copied());
        Ok(Self { names, rules, extensions: extensions.to_vec(), grammars, usual })
    }

    /// The grammar of a file, if it is one that could be run.
    fn grammar(&self, file: &SourceFile) -> Option<Grammar> {
        let extension = Path::new(&file.name).extension().and_then(|extension| extension.to_str());
        let grammar = extension.and_then(|extension| self.grammars.get(extension).copied());
        grammar.or(self.usual.filter(|_| file.is_entrypoint))
    }

    /// The files that have to be checked, and what is wrong with those of them that can't be.
    fn readable(&self, files: Vec<SourceFile>) -> (Vec<SourceFile>, Findings) {
        let mut found = Findings::default();
        let mut readable = files;
        readable.retain(|file| {
            self.grammar(file).is_some()
                && check::text(&file.content)
                    .inspect_err(|why| found.add(|| Findings::unreadable(&file.name, why)))
                    .is_ok()
        });
        (readable, found)
    }

    fn check(&self, files: &[SourceFile], until: Instant) -> Findings {
        let rules: Vec<&Rules> = self.rules.iter().map(|rules| &**rules).collect();
        let mut found = Findings::default();
        for file in files {
            let Some(grammar) = self.grammar(file) else { continue };
            let content = (file.name.as_str(), file.content.as_slice());
            if let Err(why) = check::check(content, grammar, &rules, until, &mut found) {
                found.add(|| Findings::unreadable(&file.name, why));
            }
        }
        found
    }
}

fn grammars_of(extensions: &[String]) -> Result<BTreeMap<String, Grammar>, String> {
    let grammar = |extension: &String| {
        let grammar = Grammar::of_extension(extension).ok_or_else(|| {
            format!("{extension} files can't be checked: there is no parser for them")
        })?;
        Ok((extension.trim_start_matches('.').to_owned(), grammar))
    };
    extensions.iter().map(grammar).collect()
}

#[cfg(test)]
mod tests;
