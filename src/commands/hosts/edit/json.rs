//! Hosts whose configuration is JSON, perhaps with comments.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{Document, EditError, Fields, Keys, quoted};
use crate::commands::hosts::Dialect;

pub(super) struct Json(CstRootNode);

impl Json {
    pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Self, EditError> {
        // An empty file counts as an empty object.
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let root = CstRootNode::parse(text, &options(dialect));
        let root = root.map_err(|error| EditError::Syntax(error.to_string()))?;
        if dialect == Dialect::Strict {
            // The library allows comments before and after the document.
            serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
                EditError::Syntax(format!(
                    "this host accepts no comments and no trailing commas: {error}"
                ))
            })?;
        }
        if root.value().is_some() && root.object_value().is_none() {
            return Err(EditError::NotAnObject("the whole file".to_owned()));
        }
        Ok(Self(root))
    }

    /// The object with the servers, if there is one.
    fn servers(&self, keys: Keys) -> Result<Option<CstObject>, EditError> {
        let Some(mut object) = self.0.object_value() else { return Ok(None) };
        for (depth, key) in keys.iter().enumerate() {
            let Some(inner) = only(&object, key)? else { return Ok(None) };
            let inner = inner.object_value();
            object = inner.ok_or_else(|| EditError::NotAnObject(quoted(&keys[..=depth])))?;
        }
        Ok(Some(object))
    }

    fn property(&self, keys: Keys, name: &str) -> Result<Option<CstObjectProp>, EditError> {
        self.servers(keys)?.map_or(Ok(None), |servers| only(&servers, name))
    }
}

impl Document for Json {
    fn value(&self) -> Value {
        self.0.to_serde_value().unwrap_or_default()
    }

    fn find(&self, keys: Keys, name: &str) -> Result<Option<Value>, EditError> {
        let there = self.property(keys, name)?;
        Ok(there.map(|there| there.to_serde_value().unwrap_or_default()))
    }

    fn put(&mut self, keys: Keys, name: &str, fields: Fields) -> Result<(), EditError> {
        let field = |(key, value): &(&str, Value)| ((*key).to_owned(), input(value));
        let entry = CstInputValue::Object(fields.iter().map(field).collect());
        if let Some(there) = self.property(keys, name)? {
            there.set_value(entry);
            return Ok(());
        }
        let root = self.0.object_value_or_create();
        let servers = keys
            .iter()
            .try_fold(root, |object, key| object.map(|object| object.object_value_or_create(key)));
        let servers = servers.flatten().ok_or_else(|| EditError::NotAnObject(quoted(keys)))?;
        servers.append(name, entry);
        Ok(())
    }

    fn remove(&mut self, keys: Keys, name: &str) -> Result<(), EditError> {
        if let Some(there) = self.property(keys, name)? {
            there.remove();
        }
        Ok(())
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// The property of that name, if there is one. Two are an error, because readers differ in which one counts.
fn only(object: &CstObject, name: &str) -> Result<Option<CstObjectProp>, EditError> {
    let has_name = |property: &CstObjectProp| property.decoded_name().as_deref() == Some(name);
    let mut named = object.properties().into_iter().filter(has_name);
    let first = named.next();
    if named.next().is_some() { Err(EditError::Twice(quoted(&[name]))) } else { Ok(first) }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| (key.clone(), input(value));
            CstInputValue::Object(fields.iter().map(field).collect())
        }
    }
}

/// Hosts accept nothing else that the library accepts besides comments and commas.
fn options(dialect: Dialect) -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: dialect != Dialect::Comments,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}
