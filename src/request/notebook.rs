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

/// Whether a text is a whole notebook, or the begin of one.
pub(crate) fn is_notebook(text: &str) -> bool {
    let has = |key| text.contains(key);
    text.trim_start().starts_with('{') && has("\"cells\"") && has("\"nbformat\"")
}

impl From<MultilineText> for String {
    fn from(text: MultilineText) -> Self {
        match text {
            MultilineText::Whole(text) => text,
            MultilineText::Parts(parts) => parts.concat(),
        }
    }
}
