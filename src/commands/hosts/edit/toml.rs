//! Hosts whose configuration is TOML.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

use super::{Document, EditError, Fields, Keys, quoted};

pub(super) struct Toml {
    document: DocumentMut,
    value: Value,
}

impl Toml {
    pub(super) fn parse(text: &str) -> Result<Self, EditError> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start].matches('\n').count() + 1;
            EditError::Syntax(format!("line {line}: {}", error.message()))
        })?;
        let value = toml_edit::de::from_document(document.clone())
            .map_err(|error| EditError::Syntax(error.message().to_owned()))?;
        Ok(Self { document, value })
    }

    /// The table with the servers, which is made if it is not there, and whether it is written on one line.
    fn servers(&mut self, keys: Keys) -> Result<(&mut dyn TableLike, bool), EditError> {
        let mut table: &mut dyn TableLike = self.document.as_table_mut();
        let mut is_inline = false;
        for (depth, key) in keys.iter().enumerate() {
            let item = table.entry(key).or_insert_with(|| {
                let mut table = Table::new();
                // It has no line of its own.
                table.set_implicit(true);
                Item::Table(table)
            });
            is_inline = item.is_inline_table();
            let inner = item.as_table_like_mut();
            table = inner.ok_or_else(|| EditError::NotAnObject(quoted(&keys[..=depth])))?;
        }
        Ok((table, is_inline))
    }
}

impl Document for Toml {
    fn value(&self) -> Value {
        self.value.clone()
    }

    fn put(&mut self, keys: Keys, name: &str, fields: Fields) -> Result<(), EditError> {
        let (servers, is_inline) = self.servers(keys)?;
        let fields = fields.iter().filter_map(|(key, value)| Some((*key, toml(value)?)));
        if is_inline {
            servers.insert(name, Item::Value(InlineTable::from_iter(fields).into()));
        } else {
            servers.insert(name, Item::Table(Table::from_iter(fields)));
        }
        Ok(())
    }

    fn remove(&mut self, keys: Keys, name: &str) -> Result<(), EditError> {
        self.servers(keys)?.0.remove(name);
        Ok(())
    }

    fn text(&self) -> String {
        self.document.to_string()
    }
}

/// A value of an entry; TOML has no null.
fn toml(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => number.as_i64()?.into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => Array::from_iter(items.iter().filter_map(toml)).into(),
        Value::Object(fields) => {
            let fields = fields.iter().filter_map(|(key, value)| Some((key, toml(value)?)));
            InlineTable::from_iter(fields).into()
        }
    })
}
