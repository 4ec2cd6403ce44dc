//! The text of a configuration: JSON without duplicate keys, with errors in words.

use std::collections::BTreeSet;

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::check::Problem;

/// Editors on Windows begin files with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads the text as a JSON object.
pub(super) fn read(text: &str) -> Result<Value, Vec<Problem>> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    if text.trim().is_empty() {
        return Err(vec![problem("the file", "is empty; write {} into it to use the defaults")]);
    }
    let value: Value = serde_json::from_str(text).map_err(|error| vec![not_json(text, &error)])?;
    if !value.is_object() {
        return Err(vec![problem("the file", "needs { at its beginning and } at its end")]);
    }
    let duplicates = duplicates(text);
    if duplicates.is_empty() { Ok(without_nulls(value)) } else { Err(duplicates) }
}

fn problem(path: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem { path: path.into(), message: message.into() }
}

/// The document without the keys whose value is `null`: they are not set.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(keys) => {
            let keys = keys.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                keys.map(|(key, value)| (key, without_nulls(value))).collect::<Map<_, _>>(),
            )
        }
        other => other,
    }
}

/// The first syntax error of a text that is not JSON.
fn not_json(text: &str, error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    if error.classify() == Category::Eof {
        return problem("the end of the file", "comes too early; close all brackets and quotes");
    }
    let path = format!("line {line}, column {column}");
    let rest = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let rest: String = rest.chars().skip(column.saturating_sub(1)).collect();
    if rest.starts_with('/') || rest.starts_with('#') {
        return problem(path, "JSON has no comments; remove this one");
    }
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or_default();
    problem(path, in_words(said))
}

/// The message of the JSON parser in plain words.
fn in_words(said: &str) -> String {
    let words = match said {
        "expected value" => "expected a value: a number, true, false, \"text\", [ or {",
        "key must be a string" => "expected a key in double quotes",
        "trailing comma" => "there is a comma before this bracket; remove it",
        "trailing characters" => "nothing can follow the last }",
        "expected `:`" => "expected a colon after the key",
        "expected `,` or `}`" => "expected a comma or }",
        "expected `,` or `]`" => "expected a comma or ]",
        "expected ident" => "expected true, false or null",
        "recursion limit exceeded" => "there are too many brackets in brackets",
        other if other.starts_with("control character") => {
            "a text can't contain line breaks and tabs; write them as \\n and \\t"
        }
        other => other,
    };
    words.to_owned()
}

/// Finds keys that an object has twice. JSON allows them, but one of the values would be ignored.
fn duplicates(text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    // It is JSON by now, which these options all accept.
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    if let Some(value) = parsed.ok().and_then(|parsed| parsed.value) {
        find_duplicates(&value, "", &mut problems);
    }
    problems
}

fn find_duplicates(value: &ast::Value<'_>, path: &str, problems: &mut Vec<Problem>) {
    match value {
        ast::Value::Object(object) => {
            let mut seen = BTreeSet::new();
            for property in &object.properties {
                let name = property.name.as_str();
                let path = below(path, name);
                if seen.insert(name) {
                    find_duplicates(&property.value, &path, problems);
                } else {
                    problems.push(problem(path, "is there twice; remove one"));
                }
            }
        }
        ast::Value::Array(array) => {
            for (index, value) in array.elements.iter().enumerate() {
                find_duplicates(value, &format!("{path}[{index}]"), problems);
            }
        }
        _ => {}
    }
}

/// Puts the keys of a document over those of another.
pub(super) fn merge(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, over) in over {
                merge(under.entry(key).or_insert(Value::Null), over);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// The path of a key in a section.
pub(super) fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
