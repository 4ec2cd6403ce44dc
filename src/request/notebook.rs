//! The source of a cell as notebooks of Jupyter have it.

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

impl From<MultilineText> for String {
    fn from(text: MultilineText) -> Self {
        match text {
            MultilineText::Whole(text) => text,
            MultilineText::Parts(parts) => parts.concat(),
        }
    }
}
