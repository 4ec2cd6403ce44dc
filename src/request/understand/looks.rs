//! What a source looks like that is no program: a notebook, or something with parts of Markdown or of notebooks.

use super::lines::{Lines, Style};
use super::markdown::Markdown;
use crate::config::Language;

/// Longest part of a line that is repeated, in characters.
const MAX_SHOWN: usize = 60;

/// What to say if an interpreter or compiler can't read the source.
pub(crate) fn advice(code: &str, language: &Language) -> Option<String> {
    let style = Style::of(language);
    if let Some(markdown) = Markdown::of(code, style) {
        let mark = markdown.blocks.first().map_or("```", |block| block.mark);
        return Some(format!(
            "the source has lines with {mark}, the fences of Markdown: give one program, without fences and words \
             around it"
        ));
    }
    let (number, line) = style.filter(|style| *style == Style::Python).and_then(|_| magic(code))?;
    Some(format!(
        "line {number}, {line:?}, is a command of notebooks, which a program can't have: leave it out, or run a command \
         with subprocess; nothing can be installed while the program runs"
    ))
}

/// Whether a source is a whole notebook of Jupyter.
pub(super) fn is_notebook(code: &str) -> bool {
    let has = |key| code.contains(key);
    code.trim_start().starts_with('{') && has("\"cells\"") && has("\"nbformat\"")
}

/// The first line with a command of notebooks: `%name`, `!command`, or `name?`.
fn magic(code: &str) -> Option<(usize, String)> {
    let mut state = Lines::new(Style::Python);
    code.lines().zip(1..).find_map(|(line, number)| {
        let is_outside = state.is_outside();
        state.read(line);
        let text = line.trim();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
        let after = text.trim_start_matches(['%', '!']);
        let is_command = after.len() < text.len()
            && after
                .trim_start()
                .starts_with(|c: char| c.is_ascii_alphabetic() || "./~".contains(c));
        let asked = text.trim_matches('?');
        let is_question =
            asked.len() < text.len() && !asked.is_empty() && asked.chars().all(is_name);
        (is_outside && (is_command || is_question))
            .then(|| (number, text.chars().take(MAX_SHOWN).collect()))
    })
}
