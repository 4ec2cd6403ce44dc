//! Checks one file against rules, within limits, because the file may be hostile.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use ast_grep_config::RuleConfig;
use ast_grep_core::matcher::MatcherExt;
use ast_grep_core::tree_sitter::{LanguageExt, StrDoc};
use ast_grep_core::{AstGrep, Matcher};
use tree_sitter::{ParseOptions, Parser};

use super::findings::{Findings, Violation};
use super::grammar::Grammar;
use super::rules::Rules;
use super::spelling::Plain;

/// The time for all files of a request. An ordinary one takes a millisecond.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest file that is checked, in bytes. Files of people and models have a hundredth of it.
pub(super) const MAX_SIZE: usize = 256 * 1024;

/// Longest message, in characters: it may repeat a part of the file.
const MAX_MESSAGE: usize = 200;

/// A file that can't be checked. It is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("the file is larger than {} KiB, the most that a policy reads", MAX_SIZE >> 10)]
    TooLarge,
    #[error("the file is not UTF-8, so a policy can't read it")]
    NotText,
    #[error("the file takes too long to check; is it nested very deeply?")]
    TooSlow,
}

/// The text of a file, if it is one that is checked.
pub(super) fn text(content: &[u8]) -> Result<&str, Unreadable> {
    if content.len() > MAX_SIZE {
        return Err(Unreadable::TooLarge);
    }
    std::str::from_utf8(content).map_err(|_| Unreadable::NotText)
}

/// Adds the violations in a file.
pub(super) fn check(
    (name, content): (&str, &[u8]),
    grammar: Grammar,
    policies: &[&Rules],
    until: Instant,
    found: &mut Findings,
) -> Result<(), Unreadable> {
    let text = text(content)?;
    // A comment ends at any of these for an interpreter, for the parser only at the last.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let by_kind = ByKind::new(
        policies
            .iter()
            .flat_map(|rules| rules.collection.get_rule_from_lang(Path::new(name), grammar)),
    );
    let tree = parse(text, grammar, until)?;
    let mut seen = BTreeSet::new();
    let mut plain = Plain::default();
    let mut look = |tree: &AstGrep<StrDoc<Grammar>>, mut plain: Option<&mut Plain>| {
        let is_second = plain.is_none();
        for node in tree.root().dfs() {
            if Instant::now() >= until {
                return Err(Unreadable::TooSlow);
            }
            if let Some(plain) = &mut plain {
                plain.add(&node);
            }
            // Comments such as "ast-grep-ignore" are not honoured, because the program's author writes them.
            for rule in by_kind.rules(node.kind_id()) {
                let Some(matched) = rule.matcher.match_node(node.clone()) else { continue };
                let start = matched.start_pos();
                // In plain spelling, a violation may begin elsewhere, but it ends in the same place.
                if !seen.insert((&rule.id, matched.end_pos().byte_point())) && is_second {
                    continue;
                }
                found.add(|| Violation {
                    file: name.to_owned(),
                    rule: rule.id.clone(),
                    line: start.line() as u64 + 1,
                    column: start.column(&matched) as u64 + 1,
                    message: one_line(&rule.get_message(&matched)),
                });
            }
        }
        Ok(())
    };
    look(&tree, Some(&mut plain))?;
    match plain.text(tree.source(), grammar) {
        Some(text) => look(&parse(text, grammar, until)?, None),
        None => Ok(()),
    }
}

/// Rules by the kinds of nodes that they can match.
struct ByKind<'r> {
    rules: Vec<Vec<&'r RuleConfig<Grammar>>>,
}

impl<'r> ByKind<'r> {
    fn new(all: impl Iterator<Item = &'r RuleConfig<Grammar>>) -> Self {
        let mut rules: Vec<Vec<_>> = Vec::new();
        for rule in all {
            // Each has some, or it would not have been read.
            for kind in rule.matcher.potential_kinds().iter().flatten() {
                if rules.len() <= kind {
                    rules.resize_with(kind + 1, Vec::new);
                }
                rules[kind].push(rule);
            }
        }
        Self { rules }
    }

    fn rules(&self, kind: u16) -> impl Iterator<Item = &'r RuleConfig<Grammar>> {
        self.rules.get(usize::from(kind)).into_iter().flatten().copied()
    }
}

fn parse(
    text: String,
    grammar: Grammar,
    until: Instant,
) -> Result<AstGrep<StrDoc<Grammar>>, Unreadable> {
    let mut parser = Parser::new();
    // It fails only for a parser of another version of the library.
    parser.set_language(&grammar.get_ts_language()).map_err(|_| Unreadable::TooSlow)?;
    let mut progress = |_: &tree_sitter::ParseState| {
        if Instant::now() >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let mut read = |at: usize, _| text.as_bytes().get(at..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut read, None, Some(options));
    let tree = tree.ok_or(Unreadable::TooSlow)?;
    Ok(AstGrep::doc(StrDoc { src: text, lang: grammar, tree }))
}

/// A message in one line that is not too long.
pub(super) fn one_line(message: &str) -> String {
    let clean = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = clean.take(MAX_MESSAGE).collect();
    if message.chars().nth(MAX_MESSAGE).is_some() {
        line.push('…');
    }
    line
}
