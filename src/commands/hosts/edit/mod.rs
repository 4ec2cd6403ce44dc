//! Changes one entry in the text of a host's configuration and leaves every other character, including comments,
//! as it is. No I/O.
//!
//! Each format has a [`Document`] that changes the text. Whatever it does, the result is read once more, and is taken
//! only if it says the same as before except for the entry.

mod json;
mod toml;
mod yaml;

use serde_json::{Map, Value};

use super::entry::{Entry, Fields};
use super::{Format, Host};

/// Some editors on Windows put it at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Where the servers are: the keys of the objects that lead to them.
pub(crate) type Keys = &'static [&'static str];

/// The treatment of another server of the same name.
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

/// A text that was read, and can be changed.
trait Document {
    /// Its text.
    fn value(&self) -> Value;

    /// The server with a name, if there is one.
    fn find(&self, keys: Keys, name: &str) -> Result<Option<Value>, EditError> {
        find(&self.value(), keys, name)
    }

    /// Adds a server, or replaces the one with its name.
    fn put(&mut self, keys: Keys, name: &str, fields: Fields) -> Result<(), EditError>;

    /// Removes a server, which is there.
    fn remove(&mut self, keys: Keys, name: &str) -> Result<(), EditError>;

    /// The text as it is now.
    fn text(&self) -> String;
}

fn parse(text: &str, format: Format) -> Result<Box<dyn Document>, EditError> {
    let document: Box<dyn Document> = match format {
        Format::Json(dialect) => Box::new(json::Json::parse(text, dialect)?),
        Format::Toml => Box::new(toml::Toml::parse(text)?),
        Format::Yaml => Box::new(yaml::Yaml::parse(text)?),
    };
    match document.value() {
        Value::Object(_) | Value::Null => Ok(document),
        _ => Err(EditError::NotAnObject("the whole file".to_owned())),
    }
}

/// The text with the entry; `None` if it is there already.
///
/// # Errors
///
/// See [`EditError`].
pub(crate) fn add(
    text: &str,
    host: &Host,
    name: &str,
    entry: &Entry,
    other: Other,
) -> Result<Option<String>, EditError> {
    let mut edit = Edit::begin(text, host, name)?;
    if let Some(found) = edit.document.find(edit.keys, name)? {
        if entry.starts_as(&found) {
            return Ok(None);
        }
        if other == Other::Refuse {
            return Err(EditError::Taken { name: name.to_owned(), found });
        }
    }
    edit.document.put(edit.keys, name, entry.fields(name))?;
    edit.end(Some(entry)).map(Some)
}

/// The text without the entry; `None` if there is none.
///
/// # Errors
///
/// See [`EditError`].
pub(crate) fn remove(
    text: &str,
    host: &Host,
    name: &str,
    entry: &Entry,
    other: Other,
) -> Result<Option<String>, EditError> {
    let mut edit = Edit::begin(text, host, name)?;
    let Some(found) = edit.document.find(edit.keys, name)? else { return Ok(None) };
    if other == Other::Refuse && !entry.is_of_same_server(&found) {
        return Err(EditError::NotOurs { name: name.to_owned(), found });
    }
    edit.document.remove(edit.keys, name)?;
    edit.end(None).map(Some)
}

/// A change of one server.
struct Edit<'a> {
    mark: &'static str,
    format: Format,
    keys: Keys,
    name: &'a str,
    document: Box<dyn Document>,
    /// Its text before.
    before: Value,
}

impl<'a> Edit<'a> {
    fn begin(text: &str, host: &Host, name: &'a str) -> Result<Self, EditError> {
        let (mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => ("\u{feff}", text),
            None => ("", text),
        };
        if matches!(host.format, Format::Toml | Format::Yaml) && text.contains('\r') {
            // All lines would end as on Linux afterwards.
            return Err(EditError::Unsafe);
        }
        let document = parse(text, host.format)?;
        let before = document.value();
        let keys = keys(host, &before, name);
        Ok(Self { mark, format: host.format, keys, name, document, before })
    }

    /// The new text, after checking that nothing but the one entry has changed.
    fn end(self, entry: Option<&Entry>) -> Result<String, EditError> {
        let text = self.document.text();
        let now = parse(&text, self.format).map_err(|_| EditError::Unsafe)?;
        let (mut now, mut before) = (now.value(), self.before);
        let there = take(&mut now, self.keys, self.name);
        take(&mut before, self.keys, self.name);
        let is_meant = match (entry, &there) {
            (Some(entry), Some(there)) => entry.starts_as(there),
            (None, None) => true,
            _ => false,
        };
        let is_same = now == before || (is_empty(&now) && is_empty(&before));
        if is_meant && is_same {
            Ok(format!("{}{text}", self.mark))
        } else {
            Err(EditError::Unsafe)
        }
    }
}

/// Where the servers are in this file: where the name is, or else in the last of the places that the file has.
fn keys(host: &Host, document: &Value, name: &str) -> Keys {
    let servers = |keys: Keys| {
        let found = keys.iter().try_fold(document, |value, key| value.get(key))?.as_object()?;
        // A server whose name is a key.
        let is_server = found.get("type").is_some_and(Value::is_string);
        (!is_server).then_some(found)
    };
    let has_name = |keys: &&Keys| servers(keys).is_some_and(|servers| servers.contains_key(name));
    let there = || host.keys.iter().filter(|keys| servers(keys).is_some());
    there().find(has_name).or(there().next_back()).or(host.keys.first()).copied().unwrap_or(&[])
}

/// The server with a name, if there is one.
fn find(document: &Value, keys: Keys, name: &str) -> Result<Option<Value>, EditError> {
    let mut servers = document;
    for (depth, key) in keys.iter().enumerate() {
        servers = match servers.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(inner @ Value::Object(_)) => inner,
            Some(_) => return Err(EditError::NotAnObject(quoted(&keys[..=depth]))),
        };
    }
    Ok(servers.get(name).cloned())
}

/// Removes a server, and the objects around it that become empty.
fn take(document: &mut Value, keys: &[&str], name: &str) -> Option<Value> {
    let object = document.as_object_mut()?;
    let Some((key, rest)) = keys.split_first() else { return object.remove(name) };
    let inner = object.get_mut(*key)?;
    let taken = take(inner, rest, name);
    if is_empty(inner) {
        object.remove(*key);
    }
    taken
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

fn quoted(keys: &[&str]) -> String {
    format!("\"{}\"", keys.join("."))
}

#[cfg(test)]
mod tests;
