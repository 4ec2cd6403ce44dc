//! Changes one entry in the text of a host's configuration and leaves every other character, including comments,
//! as it is. No I/O.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstObject, CstObjectProp, CstRootNode};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::entry::Entry;

/// Some editors on Windows put it at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// What a host accepts beyond JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Nothing.
    Strict,
    /// Comments, and commas before a closing brace.
    WithComments,
}

/// What to do with another server of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    /// Leave it and say so.
    Refuse,
    /// Replace or remove it.
    Replace,
}

/// Why a text was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EditError {
    /// It is not what the host reads.
    #[error("it can't be read: {0}; fix that first")]
    Syntax(String),
    /// A part is not an object.
    #[error("{0} is not an object; fix that first")]
    NotAnObject(String),
    /// A key occurs twice, and only one of the two can be meant.
    #[error("{0} is there twice; remove one of them first")]
    Twice(String),
    /// Another server has the name.
    #[error(
        "there is already a different server called {name}: {found}; replace it with --force, or choose \
         another name with --name"
    )]
    Taken {
        /// The name.
        name: String,
        /// Its entry.
        found: Value,
    },
    /// The server with the name is not this one.
    #[error("the server called {name} is not Isolator: {found}; remove it anyway with --force")]
    NotOurs {
        /// The name.
        name: String,
        /// Its entry.
        found: Value,
    },
    /// The result would differ in more than the entry.
    #[error(
        "the edit would have changed more than the entry; change the entry by hand (--print shows it)"
    )]
    Unsafe,
}

/// The text with the entry; `None` if it is there already.
///
/// # Errors
///
/// See [`EditError`].
pub(crate) fn add(
    text: &str,
    dialect: Dialect,
    key: &str,
    name: &str,
    entry: &Entry,
    other: Other,
) -> Result<Option<String>, EditError> {
    let document = Document::parse(text, dialect)?;
    if let Some(servers) = document.servers(key)?
        && let Some(there) = only(&servers, name)?
    {
        let found = there.to_serde_value().unwrap_or_default();
        if entry.starts_as(&found) {
            return Ok(None);
        }
        if other == Other::Refuse {
            return Err(EditError::Taken { name: name.to_owned(), found });
        }
        there.set_value(entry.to_input());
    } else {
        let servers = document.root.object_value_or_create();
        let servers = servers.and_then(|root| root.object_value_or_create(key));
        let servers = servers.ok_or_else(|| EditError::NotAnObject(quoted(key)))?;
        servers.append(name, entry.to_input());
    }
    document.changed(dialect, key, name, Some(entry)).map(Some)
}

/// The text without the entry; `None` if there is none.
///
/// # Errors
///
/// See [`EditError`].
pub(crate) fn remove(
    text: &str,
    dialect: Dialect,
    key: &str,
    name: &str,
    entry: &Entry,
    other: Other,
) -> Result<Option<String>, EditError> {
    let document = Document::parse(text, dialect)?;
    let Some(servers) = document.servers(key)? else { return Ok(None) };
    let Some(there) = only(&servers, name)? else { return Ok(None) };
    let found = there.to_serde_value().unwrap_or_default();
    if other == Other::Refuse && !entry.is_of_same_server(&found) {
        return Err(EditError::NotOurs { name: name.to_owned(), found });
    }
    there.remove();
    document.changed(dialect, key, name, None).map(Some)
}

struct Document {
    mark: &'static str,
    root: CstRootNode,
    /// What it said before.
    before: Value,
}

impl Document {
    fn parse(text: &str, dialect: Dialect) -> Result<Self, EditError> {
        let (mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => ("\u{feff}", text),
            None => ("", text),
        };
        // An empty file counts as an empty object.
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let root = parse(text, dialect)?;
        if root.value().is_some() && root.object_value().is_none() {
            return Err(EditError::NotAnObject("the whole file".to_owned()));
        }
        let before = root.to_serde_value().unwrap_or_else(|| Value::Object(Default::default()));
        Ok(Self { mark, root, before })
    }

    /// The object with the servers, if there is one.
    fn servers(&self, key: &str) -> Result<Option<CstObject>, EditError> {
        let Some(root) = self.root.object_value() else { return Ok(None) };
        let Some(servers) = only(&root, key)? else { return Ok(None) };
        let servers = servers.object_value();
        servers.map(Some).ok_or_else(|| EditError::NotAnObject(quoted(key)))
    }

    /// The new text, after checking that nothing but the one entry has changed.
    fn changed(
        self,
        dialect: Dialect,
        key: &str,
        name: &str,
        entry: Option<&Entry>,
    ) -> Result<String, EditError> {
        let text = self.root.to_string();
        let now = parse(&text, dialect).ok().and_then(|root| root.to_serde_value());
        let mut now = now.ok_or(EditError::Unsafe)?;
        let mut before = self.before;
        let there = take(&mut now, key, name);
        take(&mut before, key, name);
        let is_meant = match (entry, &there) {
            (Some(entry), Some(there)) => entry.starts_as(there),
            (None, None) => true,
            _ => false,
        };
        if !is_meant || now != before {
            return Err(EditError::Unsafe);
        }
        Ok(format!("{}{text}", self.mark))
    }
}

/// Removes an entry, and the object with the servers if it becomes empty.
fn take(document: &mut Value, key: &str, name: &str) -> Option<Value> {
    let servers = document.get_mut(key)?.as_object_mut()?;
    let entry = servers.remove(name);
    if servers.is_empty() {
        document.as_object_mut()?.remove(key);
    }
    entry
}

/// The property of that name, if there is one. Two are an error, because readers differ in which one counts.
fn only(object: &CstObject, name: &str) -> Result<Option<CstObjectProp>, EditError> {
    let has_name = |property: &CstObjectProp| property.decoded_name().as_deref() == Some(name);
    let mut named = object.properties().into_iter().filter(has_name);
    let first = named.next();
    if named.next().is_some() { Err(EditError::Twice(quoted(name))) } else { Ok(first) }
}

fn quoted(key: &str) -> String {
    format!("\"{key}\"")
}

fn parse(text: &str, dialect: Dialect) -> Result<CstRootNode, EditError> {
    let root = CstRootNode::parse(text, &OPTIONS);
    let root = root.map_err(|error| EditError::Syntax(error.to_string()))?;
    if dialect == Dialect::Strict {
        // The library allows comments before and after the document.
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
            EditError::Syntax(format!(
                "this host accepts no comments and no trailing commas: {error}"
            ))
        })?;
    }
    Ok(root)
}

/// Hosts accept nothing else that the library accepts besides comments and commas.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

#[cfg(test)]
mod tests;
