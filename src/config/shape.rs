//! The shape of the configuration: which keys there are, and what kind of value each has.
//!
//! It is derived from the JSON schema. So an editor that knows the schema accepts what Isolator accepts. All that is
//! wrong with a document is found at once, and told in words.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::Problem;
use super::document::below;
use crate::duration::{self, DurationError};

/// Longest part of a wrong value that is shown.
const MAX_SHOWN: usize = 60;

/// How similar a name must be to be suggested, from 0 to 1.
const SIMILAR: f64 = 0.6;

/// How similar a name from another section must be.
const VERY_SIMILAR: f64 = 0.85;

/// The shape of a value.
#[derive(Debug)]
pub(super) enum Shape {
    /// An object with these keys.
    Section {
        /// The keys.
        keys: BTreeMap<String, Shape>,
        /// Those that can't be left out.
        required: Vec<String>,
    },
    /// An object whose keys are names that the operator chooses.
    Names(Box<Shape>),
    /// A list.
    List(Box<Shape>),
    /// A text.
    Text,
    /// A text such as `5s`.
    Duration,
    /// One of these texts.
    Choice(Vec<String>),
    /// A whole number.
    Whole {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// The first of these, or an object.
    Either(Box<Shape>, Box<Shape>),
}

/// The shape of the whole configuration.
pub(super) fn configuration() -> &'static Shape {
    static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
        let schema = super::schema();
        Shape::of(&schema, &schema)
    });
    &SHAPE
}

impl Shape {
    /// The shape that a part of the schema `all` describes.
    fn of(part: &Value, all: &Value) -> Self {
        if let Some(reference) = part["$ref"].as_str() {
            let target = all.pointer(reference.trim_start_matches('#'));
            return Self::of(target.unwrap_or(&Value::Null), all);
        }
        if let Some(options) = part["anyOf"].as_array() {
            let mut options = options.iter().filter(|option| option["type"] != "null");
            let first = Self::of(options.next().unwrap_or(&Value::Null), all);
            return match options.next() {
                None => first,
                Some(section) => Self::Either(Box::new(first), Box::new(Self::of(section, all))),
            };
        }
        if let Some(choices) = choices(part) {
            return Self::Choice(choices);
        }
        let number = |key: &str| part[key].as_u64();
        match kind(part) {
            "object" => match part["properties"].as_object() {
                Some(keys) => Self::Section {
                    keys: keys.iter().map(|(key, it)| (key.clone(), Self::of(it, all))).collect(),
                    required: texts(&part["required"]),
                },
                None => Self::Names(Box::new(Self::of(&part["additionalProperties"], all))),
            },
            "array" => Self::List(Box::new(Self::of(&part["items"], all))),
            "integer" => {
                let largest = if part["format"] == "uint32" { u32::MAX.into() } else { u64::MAX };
                let (least, most) = (number("minimum"), number("maximum"));
                Self::Whole { least: least.unwrap_or(0), most: most.unwrap_or(largest) }
            }
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ if part["pattern"].is_string() => Self::Duration,
            _ => Self::Text,
        }
    }

    /// Finds all that is wrong with a value.
    pub(super) fn check(&self, value: &Value, path: &str, problems: &mut Vec<Problem>) {
        match (self, value) {
            (Self::Section { keys, required }, Value::Object(found)) => {
                for (key, value) in found {
                    let path = below(path, key);
                    match keys.get(key) {
                        Some(shape) => shape.check(value, &path, problems),
                        None => problems.push(Problem { message: unknown(key, keys), path }),
                    }
                }
                for key in required.iter().filter(|key| !found.contains_key(*key)) {
                    problems.push(Problem {
                        path: below(path, key),
                        message: "is required here".to_owned(),
                    });
                }
            }
            (Self::Names(each), Value::Object(found)) => {
                for (name, value) in found {
                    each.check(value, &below(path, name), problems);
                }
            }
            (Self::List(each), Value::Array(found)) => {
                for (index, value) in found.iter().enumerate() {
                    each.check(value, &format!("{path}[{index}]"), problems);
                }
            }
            (Self::Either(_, section), Value::Object(_)) => section.check(value, path, problems),
            (Self::Either(one, _), Value::Number(_)) => one.check(value, path, problems),
            _ if self.accepts(value) => {}
            _ => {
                let mut message = format!("expected {}, not {}", self.expected(), shown(value));
                if let (Self::Duration, Value::String(text)) = (self, value)
                    && let Err(error @ (DurationError::Months | DurationError::TooLong)) =
                        duration::parse(text)
                {
                    message.push_str(&format!("; {error}"));
                }
                if let (Self::Choice(choices), Value::String(text)) = (self, value)
                    && let Some(near) = nearest(text, choices.iter(), SIMILAR)
                {
                    message.push_str(&format!("; did you mean {near:?}?"));
                }
                problems.push(Problem { path: path.to_owned(), message });
            }
        }
    }

    /// Whether a value that is no object and no list is one of these.
    fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Text, Value::String(_))
            | (Self::Number, Value::Number(_))
            | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Duration, Value::String(text)) => duration::parse(text).is_ok(),
            (Self::Choice(choices), Value::String(text)) => choices.contains(text),
            (Self::Whole { least, most }, Value::Number(number)) => {
                number.as_u64().is_some_and(|number| (*least..=*most).contains(&number))
            }
            _ => false,
        }
    }

    /// What is right here.
    pub(super) fn expected(&self) -> String {
        match self {
            Self::Section { .. } | Self::Names(_) => "an object in { }".to_owned(),
            Self::List(each) => match **each {
                Self::Text => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
                _ => "a list in [ ]".to_owned(),
            },
            Self::Text => "a text in double quotes".to_owned(),
            Self::Duration => "a duration such as \"5s\" or \"2m\"".to_owned(),
            Self::Choice(choices) => {
                let quoted: Vec<_> = choices.iter().map(|choice| format!("{choice:?}")).collect();
                match quoted.split_last() {
                    Some((last, others)) if !others.is_empty() => {
                        format!("{} or {last}", others.join(", "))
                    }
                    _ => quoted.join(""),
                }
            }
            Self::Whole { least, most } if *most >= u32::MAX.into() => {
                format!("a whole number of at least {least}")
            }
            Self::Whole { least, most } => format!("a whole number from {least} to {most}"),
            Self::Number => "a number".to_owned(),
            Self::Boolean => "true or false".to_owned(),
            Self::Either(one, section) => {
                let keys = match &**section {
                    Self::Section { keys, .. } => keys.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}: …")).collect();
                format!("{}, or {{{}}}", one.expected(), keys.join(", "))
            }
        }
    }

    /// The paths of all keys with a name that is very similar to this one.
    fn paths_like(&self, name: &str, path: &str, found: &mut Vec<String>) {
        match self {
            Self::Section { keys, .. } => {
                for (key, shape) in keys {
                    let path = below(path, key);
                    if similarity(name, key) >= VERY_SIMILAR {
                        found.push(path.clone());
                    }
                    shape.paths_like(name, &path, found);
                }
            }
            Self::Names(each) => each.paths_like(name, &below(path, "NAME"), found),
            _ => {}
        }
    }
}

/// The texts that a part of the schema allows, if it lists them.
fn choices(part: &Value) -> Option<Vec<String>> {
    if let Some(options) = part["oneOf"].as_array() {
        let name = |option: &Value| option["const"].as_str().map(str::to_owned);
        return Some(options.iter().filter_map(name).collect());
    }
    part["enum"].is_array().then(|| texts(&part["enum"]))
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The type besides `null`.
fn kind(part: &Value) -> &str {
    let mut kinds = part["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let one = kinds.find(|kind| *kind != "null");
    part["type"].as_str().or(one).unwrap_or_default()
}

fn unknown(key: &str, keys: &BTreeMap<String, Shape>) -> String {
    if let Some(near) = nearest(key, keys.keys(), SIMILAR).or_else(|| containing(key, keys)) {
        return format!("there is no such key; did you mean `{near}`?");
    }
    let mut elsewhere = Vec::new();
    configuration().paths_like(key, "", &mut elsewhere);
    match elsewhere.first() {
        Some(path) => format!("there is no such key here; did you mean `{path}`?"),
        None => {
            let known: Vec<_> = keys.keys().map(String::as_str).collect();
            format!("there is no such key here; there are {}", known.join(", "))
        }
    }
}

/// A key of which the name is a part: `timeout` of `defaultTimeoutSeconds`.
fn containing<'a>(name: &str, keys: &'a BTreeMap<String, Shape>) -> Option<&'a String> {
    let name = squashed(name);
    keys.keys().find(|key| name.len() > 2 && squashed(key).contains(&name))
}

/// The name that is most similar.
pub(super) fn nearest<'a>(
    name: &str,
    names: impl Iterator<Item = &'a String>,
    least: f64,
) -> Option<&'a String> {
    let rated = names.map(|known| (similarity(name, known), known));
    let fits = rated.filter(|(rating, _)| *rating >= least);
    fits.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

fn similarity(a: &str, b: &str) -> f64 {
    // The time that a comparison takes grows with both lengths.
    if a.len() > 2 * MAX_SHOWN {
        return 0.0;
    }
    strsim::normalized_damerau_levenshtein(&squashed(a), &squashed(b))
}

/// Without what people mix up: case and separators.
fn squashed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

/// A wrong value as it was written, if it is short.
pub(super) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Object(_) => return "an object".to_owned(),
        Value::Array(_) => return "a list".to_owned(),
        other => other.to_string(),
    };
    if text.chars().count() <= MAX_SHOWN {
        return text;
    }
    let start: String = text.chars().take(MAX_SHOWN).collect();
    format!("{start}…")
}
