//! The policy of a language: the rules that apply to its programs.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::check;
use super::findings::{Findings, SourceFile};
use super::grammar::Grammar;
use super::rules::{PolicyError, Rules};

/// A language that policies can apply to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LanguageFiles<'a> {
    pub(crate) name: &'a str,
    /// Extensions of its files with the dot, the usual one first.
    pub(crate) extensions: &'a [String],
}

/// The rules for one language.
pub(super) struct Policy {
    pub(super) names: Vec<String>,
    pub(super) rules: Vec<Arc<Rules>>,
    /// The language's extensions with their dots, the usual one first.
    pub(super) extensions: Vec<String>,
    /// For each extension, without its dot.
    grammars: Vec<(String, Grammar)>,
    /// For an entrypoint with another extension.
    usual: Option<Grammar>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}

impl Policy {
    /// The policy of these names for a language. An error about one name comes with its index.
    pub(super) fn new(
        wanted: &[String],
        known: &[Arc<Rules>],
        language: &LanguageFiles<'_>,
    ) -> Result<Self, (Option<usize>, PolicyError)> {
        let grammars = grammars_of(language.extensions).map_err(|error| (None, error))?;
        let mut rules = Vec::new();
        for (index, name) in wanted.iter().enumerate() {
            let Some(policy) = known.iter().find(|policy| policy.name == *name) else {
                let known: Vec<_> = known.iter().map(|policy| policy.name.as_str()).collect();
                let known = known.join(", ");
                return Err((Some(index), PolicyError::Unknown { name: name.clone(), known }));
            };
            if !grammars.iter().any(|(_, grammar)| policy.grammars.contains(grammar)) {
                let (name, language) = (name.clone(), language.name.to_owned());
                return Err((Some(index), PolicyError::OtherLanguage { name, language }));
            }
            rules.push(Arc::clone(policy));
        }
        let has_rules = |grammar: &Grammar| rules.iter().any(|it| it.grammars.contains(grammar));
        if let Some((extension, grammar)) = grammars.iter().find(|(_, it)| !has_rules(it)) {
            let (grammar, extension) = (*grammar, extension.clone());
            let language = language.name.to_owned();
            return Err((None, PolicyError::Unchecked { grammar, extension, language }));
        }
        Self::of_rules(wanted.to_vec(), rules, language.extensions).map_err(|error| (None, error))
    }

    /// A policy of these rules for files with these extensions.
    pub(super) fn of_rules(
        names: Vec<String>,
        rules: Vec<Arc<Rules>>,
        extensions: &[String],
    ) -> Result<Self, PolicyError> {
        let grammars = grammars_of(extensions)?;
        let usual = grammars.first().map(|(_, grammar)| *grammar);
        Ok(Self { names, rules, extensions: extensions.to_vec(), grammars, usual })
    }

    /// The grammar of a file, if it is one that could be run.
    fn grammar(&self, file: &SourceFile) -> Option<Grammar> {
        let extension = Path::new(&file.name).extension().and_then(|extension| extension.to_str());
        let known = self.grammars.iter().find(|(known, _)| Some(known.as_str()) == extension);
        known.map(|(_, grammar)| *grammar).or(self.usual.filter(|_| file.is_entrypoint))
    }

    /// The files that can be checked, and a violation for each that should be and can't.
    pub(super) fn readable(&self, files: Vec<SourceFile>) -> (Vec<SourceFile>, Findings) {
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

    pub(super) fn check(&self, files: &[SourceFile], until: Instant) -> Findings {
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

/// The grammar of each extension, without its dot, in the same order.
fn grammars_of(extensions: &[String]) -> Result<Vec<(String, Grammar)>, PolicyError> {
    let grammar = |extension: &String| {
        let grammar = Grammar::of_extension(extension);
        let grammar = grammar.ok_or_else(|| PolicyError::NoParser(extension.clone()))?;
        Ok((extension.trim_start_matches('.').to_owned(), grammar))
    };
    extensions.iter().map(grammar).collect()
}
