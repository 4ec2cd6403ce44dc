//! Policies: rules of the operator about programs, checked before they run.
//!
//! A policy is a file of rules in the format of ast-grep. `rules.rs` reads it, `check.rs` checks a file
//! against it, in a process without rights (`checker/`). Policies are a lint; the sandbox is the protection.

mod check;
mod checker;
mod findings;
mod grammar;
mod language;
mod rules;
mod spelling;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::admission::{AdmissionError, Client};

pub use self::checker::process::run as run_checker;
pub use self::findings::{Findings, SourceFile, Violation};
pub(crate) use self::language::LanguageFiles;

use self::check::CHECK_TIMEOUT;
use self::checker::Checkers;
use self::language::Policy;

/// Extra time for a check that does not notice its timeout, and for one that waits for such a check.
const GRACE: Duration = Duration::from_secs(3);

/// The path of a wrong key of the configuration, and what is wrong with it.
pub(crate) type Problem = (String, String);

/// The policies of all languages.
#[derive(Debug, Default)]
pub struct Policies {
    languages: Vec<(String, Arc<Policy>)>,
    checkers: Checkers,
}

/// A program was not checked, because too many others wait. Nothing is known against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("too many programs wait to be checked against the policy of this server: {0}")]
pub struct NoTurn(#[from] pub AdmissionError);

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
        let mut known = rules::built_in().unwrap_or_else(|(name, error)| {
            problem("policies".to_owned(), format!("{name}: {error}"));
            Vec::new()
        });
        for (path, error) in folder.map_or(Vec::new(), |it| rules::add_folder(it, &mut known)) {
            problem("policies.folder".to_owned(), format!("{}: {error}", path.display()));
        }
        known.sort_unstable_by(|a, b| a.name.cmp(&b.name));
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
                Ok(policy) => policies.languages.push((name.clone(), Arc::new(policy))),
                Err((index, error)) => {
                    let path = index.map_or(path.clone(), |index| format!("{path}[{index}]"));
                    problem(path, error.to_string());
                }
            }
        }
        let languages = &policies.languages;
        policies.checkers = Checkers::new(
            languages.iter().map(|(language, policy)| (language.as_str(), &**policy)),
        );
        policies
    }

    /// The policies in use: the language, the policy's name and its text as it was loaded.
    pub(crate) fn texts(&self) -> impl Iterator<Item = [&str; 3]> {
        self.languages.iter().flat_map(|(language, policy)| {
            policy.rules.iter().map(|rules| [language.as_str(), &rules.name, &rules.text])
        })
    }

    fn of_language(&self, language: &str) -> Option<&Arc<Policy>> {
        self.languages.iter().find(|(name, _)| name == language).map(|(_, policy)| policy)
    }

    /// Whether programs in a language have to be checked.
    pub fn apply_to(&self, language: &str) -> bool {
        self.of_language(language).is_some()
    }

    /// Names of the policies for programs in a language.
    pub fn names(&self, language: &str) -> &[String] {
        self.of_language(language).map_or(&[], |policy| &policy.names)
    }

    /// Finds the violations in the files of a program of this client, which waits for its turn no longer than given. A file that can't be
    /// read in time is one, too.
    ///
    /// # Errors
    ///
    /// When the program had no turn, because too many others wait for theirs. Then it must not run.
    pub async fn check(
        &self,
        language: &str,
        files: Vec<SourceFile>,
        client: &Client,
        longest_wait: Option<Duration>,
    ) -> Result<Findings, NoTurn> {
        let Some(policy) = self.of_language(language) else { return Ok(Findings::default()) };
        let name = files.first().map_or(String::new(), |file| file.name.clone());
        let (readable, mut found) = policy.readable(files);
        if readable.is_empty() {
            return Ok(found);
        }
        // The time for a check does not begin before its turn.
        let _turn = self.checkers.turn(client, longest_wait).await?;
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

#[cfg(test)]
mod tests;
