//! The JSON schema of the file, as editors get it.

use schemars::Schema;
use serde_json::{Map, Value, json};

/// The schema of the file that is derived from a type, as files are read: a key that is `null` is not set.
pub(super) fn published(mut derived: Value) -> Value {
    adapt(&mut derived);
    for (_, definition) in derived["$defs"].as_object_mut().into_iter().flatten() {
        adapt(definition);
    }
    derived
}

/// Marks a key whose default follows from other keys: the schema has none.
pub(super) fn follows(schema: &mut Schema) {
    schema.remove("default");
}

/// Adapts the keys of a section, or the entries of a map.
fn adapt(part: &mut Value) {
    let Some(part) = part.as_object_mut() else { return };
    let required = part.get("required").cloned().unwrap_or_default();
    let is_required = |key: &str| required.as_array().is_some_and(|all| all.contains(&json!(key)));
    for (key, value) in
        part.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
    {
        adapt(value);
        let Some(value) = value.as_object_mut() else { continue };
        // It would be for keys that are not shown because they are paths.
        value.remove("writeOnly");
        // A section's keys have their own, and `null` says nothing.
        if value
            .get("default")
            .is_some_and(|it| it.is_null() || (it.is_object() && value.contains_key("$ref")))
        {
            value.remove("default");
        }
        if !is_required(key) {
            accept_null(value);
        }
    }
    if let Some(entry) = part.get_mut("additionalProperties").filter(|entry| entry.is_object()) {
        adapt(entry);
        accept_null(entry.as_object_mut().expect("it is an object"));
    }
}

/// Adds `null` to the values of a key.
fn accept_null(part: &mut Map<String, Value>) {
    let null = json!({ "type": "null" });
    if let Some(reference) = part.remove("$ref") {
        part.insert("anyOf".to_owned(), vec![json!({ "$ref": reference }), null].into());
    } else if let Some(Value::Array(options)) = part.get_mut("anyOf") {
        if !options.contains(&null) {
            options.push(null);
        }
    } else if let Some(Value::Array(choices)) = part.get_mut("enum") {
        choices.push(Value::Null);
    } else if let Some(kind) = part.get_mut("type")
        && kind.is_string()
    {
        *kind = json!([kind, "null"]);
    }
}
