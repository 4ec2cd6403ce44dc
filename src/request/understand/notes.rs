//! Notes on what was understood of a call.

use crate::request::arguments::InvalidArgument;

/// Most notes of a call. The same correction in all items of a list is one note.
const MAX_NOTES: usize = 10;

/// Remarks on arguments that are not as they should be, and how they were understood.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<Remark>);

#[derive(Debug, PartialEq)]
struct Remark {
    field: String,
    text: String,
}

impl Notes {
    /// Adds a note about a field. A note that another item of the same list has is not repeated.
    pub(super) fn add(&mut self, field: &str, text: impl Into<String>) {
        let note = Remark { field: without_indices(field), text: without_indices(&text.into()) };
        if self.0.len() < MAX_NOTES && !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    /// The notes for the caller.
    pub(crate) fn into_texts(self) -> Vec<String> {
        self.0.into_iter().map(|note| note.text).collect()
    }

    /// Adds what was understood of a field to the reason why it can't be used.
    pub(crate) fn explain(&self, mut error: InvalidArgument) -> InvalidArgument {
        let field = without_indices(&error.field);
        if let Some(note) = self.0.iter().find(|note| note.field == field) {
            error.message = format!("{} ({})", error.message, note.text);
        }
        error
    }
}

/// The path of a field without the numbers of items.
fn without_indices(path: &str) -> String {
    let mut parts = path.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push('[');
        match part.split_once(']') {
            Some((index, rest)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
                plain.push(']');
                plain.push_str(rest);
            }
            _ => plain.push_str(part),
        }
    }
    plain
}
