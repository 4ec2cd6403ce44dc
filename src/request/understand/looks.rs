//! Recognises sources that are no programs: texts with parts of Markdown or of notebooks.

use std::sync::LazyLock;

use regex::Regex;

use super::lines::{Lines, Style};
use super::markdown::Markdown;
use crate::config::Language;
use crate::pattern::pattern;

/// Longest part of a line that is repeated, in characters.
const MAX_SHOWN: usize = 60;

/// A command that installs something, at the beginning of a line.
static INSTALLER: LazyLock<Regex> = pattern!(
    r"^(?:[!%]+\s*)?(?:\$\s+)?(?:sudo\s+)?(?:python[\d.]*\s+-m\s+)?(?:uv\s+)?(?:pip[\d.]*|conda|mamba|npm|pnpm|yarn|bun|apt|apt-get|apk|brew|go)\s+(?:-\S+\s+)*(?:install|add|i|ci|get|update)\b"
);

/// Advice if an interpreter or compiler can't read the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    /// The problem in the source, and how to fix it.
    pub text: String,
    /// Whether something should be installed, about which there is more to say.
    pub installs: bool,
}

/// Advice if an interpreter or compiler can't read the source.
pub(crate) fn advice(code: &str, language: &Language) -> Option<Advice> {
    let plain = |text: String| Some(Advice { text, installs: false });
    let style = Style::of(language);
    if let Some(markdown) = Markdown::of(code, style) {
        let mark = markdown.blocks.first().map_or("```", |block| block.mark);
        return plain(format!(
            "the source has lines with {mark}, the fences of Markdown: give one program, without fences and words \
             around it"
        ));
    }
    let style = style?;
    if let Some((number, line)) = first_line(code, style, |line| INSTALLER.is_match(line)) {
        let text = format!(
            "line {number}, {line:?}, is a command for a shell, not {}: leave it out",
            language.name
        );
        return Some(Advice { text, installs: true });
    }
    if style == Style::Python
        && let Some((number, line)) = first_line(code, style, is_magic)
    {
        return plain(format!(
            "line {number}, {line:?}, is a command of notebooks, which a program can't have: leave it out, or run a command \
             with subprocess"
        ));
    }
    let is_go = language.extensions.first().is_some_and(|extension| extension == ".go");
    if is_go && first_line(code, style, |line| line.starts_with("package ")).is_none() {
        return plain(
            "a program in Go begins with the line `package main`, then come its imports, and its statements are in `func main() \
             { … }`"
                .to_owned(),
        );
    }
    None
}

/// The first line outside of strings and comments that is one, with its number.
fn first_line(code: &str, style: Style, is_one: impl Fn(&str) -> bool) -> Option<(usize, String)> {
    let mut state = Lines::new(style);
    code.lines().zip(1..).find_map(|(line, number)| {
        let is_outside = state.is_outside();
        state.read(line);
        let text = line.trim();
        (is_outside && is_one(text)).then(|| (number, text.chars().take(MAX_SHOWN).collect()))
    })
}

/// Whether a line is a command of notebooks: `%name`, `!command`, or `name?`.
fn is_magic(line: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
    let after = line.trim_start_matches(['%', '!']);
    let is_command = after.len() < line.len()
        && after.trim_start().starts_with(|c: char| c.is_ascii_alphabetic() || "./~".contains(c));
    let asked = line.trim_matches('?');
    let is_question = asked.len() < line.len() && !asked.is_empty() && asked.chars().all(is_name);
    is_command || is_question
}
