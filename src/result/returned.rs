//! A file that comes back from a run: in the report, and in the answer.

use schemars::JsonSchema;
use serde::Serialize;

/// A file that the program created or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct FileReport {
    /// Path below the working directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// How its content comes back, if it does: image, text, or link (to a resource).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<&'static str>,
    /// Media type of its content, if that comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Where its content can be read for a while, if it comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

impl FileReport {
    /// A file whose content does not come back.
    pub(crate) const fn named(path: String, size: u64) -> Self {
        Self { path, size, returned: None, media_type: None, uri: None }
    }
}

/// A file's content as it comes with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attachment {
    Picture {
        /// Its content in base64.
        base64: String,
        media_type: String,
    },
    Text {
        /// Its content.
        text: String,
        /// Its address; `file:` and its path if nothing can be read there.
        uri: String,
        media_type: String,
    },
    /// A file that can be read for a while.
    Link {
        /// Its address.
        uri: String,
        /// Its path below the working directory.
        path: String,
        /// Its size in bytes.
        size: u64,
        media_type: String,
    },
}

impl Attachment {
    /// Bytes that it adds to an answer.
    pub(crate) fn weight(&self) -> usize {
        const LINK: usize = 200;
        match self {
            Self::Picture { base64, .. } => base64.len(),
            Self::Text { text, .. } => text.len(),
            Self::Link { uri, path, .. } => LINK + uri.len() + path.len(),
        }
    }
}
