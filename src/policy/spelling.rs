//! Other spellings of the same program: a call whose function is in parentheses, or a name in other letters.
//!
//! Rules name functions and modules as people write them. So a program that is spelled in another way is checked a second
//! time, in plain spelling.

use std::ops::Range;

use ast_grep_core::Node;
use ast_grep_core::tree_sitter::StrDoc;
use icu_normalizer::ComposingNormalizerBorrowed;

use super::grammar::Grammar;

type NodeOf<'t> = Node<'t, StrDoc<Grammar>>;

/// A part of a source, and the name that replaces it; spaces if there is none.
type Edit = (Range<usize>, Option<String>);

/// The edits that bring a source into plain spelling, collected node by node.
#[derive(Default)]
pub(super) struct Plain {
    edits: Vec<Edit>,
}

impl Plain {
    /// Adds the edits for this node.
    pub(super) fn add(&mut self, node: &NodeOf<'_>) {
        let kind = node.kind();
        match &*kind {
            "call" | "call_expression" => {
                self.leave_only(node.field("function"));
                // `f?.()` and `f<T>()` call f.
                let is_extra = |part: &NodeOf<'_>| {
                    matches!(&*part.kind(), "optional_chain" | "?." | "type_arguments")
                };
                self.edits
                    .extend(node.children().filter(is_extra).map(|part| (part.range(), None)));
            }
            "new_expression" => self.leave_only(node.field("constructor")),
            "decorator" => self.leave_only(named(node).next()),
            // A shell takes `'eval'` and `\eval` for `eval`.
            "command_name" => {
                let plain = node.text().replace(['"', '\'', '\\'], "");
                let is_name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
                self.write(node, Some(plain).filter(|plain| plain.chars().all(is_name)));
            }
            name if name.ends_with("identifier") => self.write(node, plain_name(&node.text())),
            _ => {}
        }
    }

    /// Replaces a node by a name, if there is one.
    fn write(&mut self, node: &NodeOf<'_>, name: Option<String>) {
        let name = name.filter(|name| *name != node.text());
        self.edits.extend(name.map(|name| (node.range(), Some(name))));
    }

    /// Replaces everything of a called expression but its name by spaces.
    fn leave_only(&mut self, called: Option<NodeOf<'_>>) {
        let Some(called) = called else { return };
        let (all, name) = (called.range(), innermost(called).range());
        let around = [all.start..name.start, name.end..all.end];
        self.edits
            .extend(around.into_iter().filter(|part| !part.is_empty()).map(|part| (part, None)));
    }

    /// The source in plain spelling, if that is different.
    pub(super) fn text(mut self, text: &str, grammar: Grammar) -> Option<String> {
        // An expression of several lines stays one, and every line keeps its number.
        let new_line = if grammar == Grammar::PYTHON { "\\\n" } else { "\n" };
        self.edits.sort_by_key(|(part, _)| part.start);
        let (mut plain, mut done) = (String::with_capacity(text.len()), 0);
        for (part, name) in &self.edits {
            if part.start < done {
                continue;
            }
            plain.push_str(&text[done..part.start]);
            match name {
                Some(name) => plain.push_str(name),
                None => plain.extend(text[part.clone()].chars().map(|c| match c {
                    '\n' => new_line,
                    _ => " ",
                })),
            }
            done = part.end;
        }
        plain.push_str(&text[done..]);
        (!self.edits.is_empty()).then_some(plain)
    }
}

fn named<'t>(node: &NodeOf<'t>) -> impl Iterator<Item = NodeOf<'t>> {
    node.children().filter(|child| child.is_named() && child.kind() != "comment")
}

/// The expression that is called in the end: the one in parentheses, the last of several, or the one that is given a name or
/// a type.
fn innermost(mut node: NodeOf<'_>) -> NodeOf<'_> {
    loop {
        let inner = match &*node.kind() {
            "parenthesized_expression"
            | "as_expression"
            | "satisfies_expression"
            | "non_null_expression"
            | "instantiation_expression" => named(&node).next(),
            "sequence_expression" | "type_assertion" => named(&node).last(),
            "named_expression" => node.field("value"),
            "assignment_expression" => node.field("right"),
            "attribute"
                if node.field("attribute").is_some_and(|name| name.text() == "__call__") =>
            {
                node.field("object")
            }
            _ => None,
        };
        let Some(inner) = inner else { return node };
        node = inner;
    }
}

/// A name in plain letters, if that is different: Python takes `ｅval` for `eval`, and JavaScript `\u0065val`.
fn plain_name(name: &str) -> Option<String> {
    if name.contains('\\') {
        return unescaped(name);
    }
    let plain = || ComposingNormalizerBorrowed::new_nfkc().normalize(name).into_owned();
    (!name.is_ascii()).then(plain)
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split("\\u");
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (digits, rest) = match part.strip_prefix('{') {
            Some(part) => part.split_once('}')?,
            None => part.split_at_checked(4)?,
        };
        plain.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
        plain.push_str(rest);
    }
    Some(plain)
}
