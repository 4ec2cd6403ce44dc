//! Notebooks of Jupyter: how they are recognised, and the source of a cell.

use serde::Deserialize;

/// A text, or a list of its parts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum MultilineText {
    /// In one piece.
    Whole(String),
    /// In lines, with their ends.
    Parts(Vec<String>),
}

/// Whether a text is a whole notebook, or the begin of one: an object of JSON, and no block of JavaScript.
pub(crate) fn is_notebook(text: &str) -> bool {
    let has = |key| text.contains(key);
    let inside = text.trim_start().strip_prefix('{');
    inside.is_some_and(|inside| inside.trim_start().starts_with('"'))
        && has("\"cells\"")
        && has("\"nbformat\"")
}

impl From<MultilineText> for String {
    fn from(text: MultilineText) -> Self {
        match text {
            MultilineText::Whole(text) => text,
            MultilineText::Parts(parts) => parts.concat(),
        }
    }
}
