//! Hosts whose configuration is YAML.
//!
//! No library that is widely used edits YAML and keeps comments, so this changes lines. It understands the form in
//! which hosts write their files: one key a line, in blocks. Whatever else a file has, the check after the edit sees
//! that it still says the same, or the file is left as it is.

use std::iter;
use std::ops::Range;

use serde_json::Value;

use super::{Document, EditError, Fields, Keys, find};

/// Spaces before the keys of a block, if there is none to go by.
const INDENT: usize = 2;

pub(super) struct Yaml {
    lines: Vec<String>,
    value: Value,
}

impl Yaml {
    pub(super) fn parse(text: &str) -> Result<Self, EditError> {
        let value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(text)
                .map_err(|error| EditError::Syntax(first_line(&error.to_string())))?
        };
        Ok(Self { lines: text.lines().map(str::to_owned).collect(), value })
    }

    /// The lines of a key's value in a block, which follow the line of the key, and the spaces before them.
    fn block(&self, within: Range<usize>, indent: usize, key: &str) -> Option<Block> {
        let is_key = |at: &usize| {
            let line = &self.lines[*at];
            spaces(line) == indent && value_of(line.trim_start(), key).is_some()
        };
        let line = within.clone().find(is_key)?;
        let deeper = |at: &usize| is_blank(&self.lines[*at]) || spaces(&self.lines[*at]) > indent;
        // Blank lines and comments at the end belong to what follows.
        let said = |at: &usize| !is_blank(&self.lines[*at]);
        let value = (line + 1..within.end).take_while(deeper).filter(said);
        let end = value.last().map_or(line + 1, |at| at + 1);
        let first = (line + 1..end).find(said);
        let inner = first.map_or(indent + INDENT, |at| spaces(&self.lines[at]));
        Some(Block { line, end, indent: inner })
    }

    /// The block of the servers.
    fn servers(&self, keys: Keys) -> Option<Block> {
        let (key, rest) = keys.split_first()?;
        let first = self.block(0..self.lines.len(), 0, key)?;
        rest.iter()
            .try_fold(first, |outer, key| self.block(outer.line + 1..outer.end, outer.indent, key))
    }
}

/// A key with its value.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The line of the key.
    line: usize,
    /// The line after its value.
    end: usize,
    /// Spaces before the keys in it.
    indent: usize,
}

impl Document for Yaml {
    fn value(&self) -> Value {
        self.value.clone()
    }

    fn put(&mut self, keys: Keys, name: &str, fields: Fields) -> Result<(), EditError> {
        if find(&self.value, keys, name)?.is_some() {
            self.remove(keys, name)?;
        }
        if self.servers(keys).is_none() {
            let header = |(depth, key): (usize, &&str)| format!("{:1$}{key}:", "", depth * INDENT);
            self.lines.extend(keys.iter().enumerate().map(header));
        }
        let block = self.servers(keys).ok_or(EditError::Unsafe)?;
        // What says that there are none.
        let line = &mut self.lines[block.line];
        for nothing in [" {}", " null", " ~"] {
            if let Some(key) = line.strip_suffix(nothing) {
                *line = key.to_owned();
            }
        }
        let indent = block.indent;
        let header = iter::once(format!("{:indent$}{name}:", ""));
        // Any JSON is YAML.
        let field =
            |(key, value): &(&str, Value)| format!("{:1$}{key}: {value}", "", indent + INDENT);
        let entry: Vec<_> = header.chain(fields.iter().map(field)).collect();
        self.lines.splice(block.end..block.end, entry);
        Ok(())
    }

    fn remove(&mut self, keys: Keys, name: &str) -> Result<(), EditError> {
        let servers = self.servers(keys).ok_or(EditError::Unsafe)?;
        let inner = servers.line + 1..servers.end;
        let entry = self.block(inner, servers.indent, name).ok_or(EditError::Unsafe)?;
        self.lines.drain(entry.line..entry.end);
        let rest = servers.line + 1..servers.end - (entry.end - entry.line);
        if self.lines[rest].iter().all(|line| is_blank(line)) {
            // A key without a value would be null.
            self.lines[servers.line].push_str(" {}");
        }
        Ok(())
    }

    fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line, "\n"]).collect()
    }
}

/// The text after a key on its line, if the line is of that key.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let quoted = [format!("{key}:"), format!("\"{key}\":"), format!("'{key}':")];
    quoted
        .iter()
        .find_map(|key| line.strip_prefix(key))
        .filter(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Whether a line says nothing. Comments count as nothing.
fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

fn spaces(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The message of the library before it shows the place.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
