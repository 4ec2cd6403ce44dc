//! The shape of the configuration: its keys, and the kind of value of each.
//!
//! It is derived from the JSON schema. So an editor that knows the schema accepts what Isolator accepts. All errors of a
//! document are found at once, and described in plain words.

use std::collections::BTreeMap;

use serde_json::Value;

use super::check::Problem;
use super::document::below;
use super::similar::{SIMILAR, nearest, similarity, squashed};
use crate::address::ListenAddress;
use crate::duration::{self, DurationError};

/// Longest part of a wrong value that is shown.
const MAX_SHOWN: usize = 60;

/// How similar a name from another section must be.
const VERY_SIMILAR: f64 = 0.85;

/// The shape of a value.
#[derive(Debug)]
pub(super) enum Shape {
    /// An object with these keys.
    Section {
        keys: BTreeMap<String, Shape>,
        /// Those that can't be left out.
        required: Vec<String>,
    },
    /// An object whose keys are names that the operator chooses.
    Names(Box<Shape>),
    List(Box<Shape>),
    Text,
    /// A text such as `5s`.
    Duration {
        /// Whether it can be zero.
        can_be_zero: bool,
    },
    /// A text such as `127.0.0.1:8000`.
    Address,
    /// One of these texts.
    Choice(Vec<String>),
    Whole {
        least: u64,
        most: u64,
    },
    Number {
        least: f64,
        most: f64,
    },
    Boolean,
    /// The first of these, or an object.
    Either(Box<Shape>, Box<Shape>),
}

impl Shape {
    /// The shape that a part of the schema `all` describes.
    pub(super) fn of(part: &Value, all: &Value) -> Self {
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
                let (least, most) = (part["minimum"].as_u64(), part["maximum"].as_u64());
                Self::Whole { least: least.unwrap_or(0), most: most.unwrap_or(largest) }
            }
            "number" => {
                let (least, most) = (part["minimum"].as_f64(), part["maximum"].as_f64());
                Self::Number { least: least.unwrap_or(f64::MIN), most: most.unwrap_or(f64::MAX) }
            }
            "boolean" => Self::Boolean,
            _ if part["format"] == "listen-address" => Self::Address,
            // Its section checks it.
            _ if part["format"] == "node-name" => Self::Text,
            _ if part["pattern"].is_string() => {
                Self::Duration { can_be_zero: part["not"].is_null() }
            }
            _ => Self::Text,
        }
    }

    /// Finds all errors of a document with this shape.
    pub(super) fn check(&self, document: &Value) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check_part(document, "", self, &mut problems);
        problems
    }

    /// Finds all errors of a value. `all` is the shape of the whole document.
    pub(super) fn check_part(
        &self,
        value: &Value,
        path: &str,
        all: &Self,
        problems: &mut Vec<Problem>,
    ) {
        match (self, value) {
            (Self::Section { keys, required }, Value::Object(found)) => {
                for (key, value) in found {
                    let path = below(path, key);
                    match keys.get(key) {
                        Some(shape) => shape.check_part(value, &path, all, problems),
                        None => problems.push(Problem { message: unknown(key, keys, all), path }),
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
                    each.check_part(value, &below(path, name), all, problems);
                }
            }
            (Self::List(each), Value::Array(found)) => {
                for (index, value) in found.iter().enumerate() {
                    each.check_part(value, &format!("{path}[{index}]"), all, problems);
                }
            }
            (Self::Either(_, section), Value::Object(_)) => {
                section.check_part(value, path, all, problems);
            }
            (Self::Either(one, _), Value::Number(_)) => one.check_part(value, path, all, problems),
            _ if self.accepts(value) => {}
            _ => problems.push(Problem { path: path.to_owned(), message: self.error(value) }),
        }
    }

    /// Removes the keys of a section whose values are numbers or durations out of their bounds.
    pub(super) fn remove_out_of_bounds(&self, section: &mut Value) {
        if let (Self::Section { keys, .. }, Value::Object(found)) = (self, section) {
            found.retain(|key, value| {
                let Some(shape) = keys.get(key) else { return true };
                shape.remove_out_of_bounds(value);
                !shape.is_out_of_bounds(value)
            });
        }
    }

    /// Whether a value has the right kind, but is out of its bounds.
    pub(super) fn is_out_of_bounds(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Whole { .. }, Value::Number(number)) => number.is_u64() && !self.accepts(value),
            (Self::Number { .. }, Value::Number(_)) => !self.accepts(value),
            (Self::Duration { .. }, Value::String(text)) => {
                duration::parse(text).is_ok() && !self.accepts(value)
            }
            (Self::Either(one, _), Value::Number(_)) => one.is_out_of_bounds(value),
            (Self::Either(_, section), Value::Object(found)) => match &**section {
                Self::Section { keys, .. } => {
                    let mut known = found.iter().filter_map(|(key, it)| Some((keys.get(key)?, it)));
                    known.any(|(shape, value)| shape.is_out_of_bounds(value))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// The shape of a key of a section, or of the entries of a map.
    pub(super) fn inside(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Section { keys, .. } => keys.get(key),
            Self::Names(each) => Some(each),
            _ => None,
        }
    }

    /// The error of a value that is not accepted.
    fn error(&self, value: &Value) -> String {
        let expected = format!("expected {}, not {}", self.expected(), shown(value));
        match (self, value) {
            (Self::Duration { .. }, Value::String(text)) => match duration::parse(text) {
                Ok(_) => "a duration of zero is not allowed".to_owned(),
                Err(error @ (DurationError::Months | DurationError::TooLong)) => {
                    format!("{expected}; {error}")
                }
                Err(DurationError::Malformed) => expected,
            },
            (Self::Address, Value::String(text)) => match text.parse::<ListenAddress>() {
                Ok(_) => expected,
                Err(error) => error.to_string(),
            },
            (Self::Choice(choices), Value::String(text)) => {
                match nearest(text, choices.iter(), SIMILAR) {
                    Some(near) => format!("{expected}; did you mean {near:?}?"),
                    None => expected,
                }
            }
            _ => expected,
        }
    }

    /// Whether a value that is no object and no list is one of these.
    fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Text, Value::String(_)) | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Duration { can_be_zero }, Value::String(text)) => {
                duration::parse(text).is_ok_and(|duration| *can_be_zero || !duration.is_zero())
            }
            (Self::Address, Value::String(text)) => text.parse::<ListenAddress>().is_ok(),
            (Self::Number { least, most }, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (*least..=*most).contains(&number))
            }
            (Self::Choice(choices), Value::String(text)) => choices.contains(text),
            (Self::Whole { least, most }, Value::Number(number)) => {
                number.as_u64().is_some_and(|number| (*least..=*most).contains(&number))
            }
            _ => false,
        }
    }

    /// A description of the values that are accepted.
    pub(super) fn expected(&self) -> String {
        match self {
            Self::Section { .. } | Self::Names(_) => "an object in { }".to_owned(),
            Self::List(each) => match **each {
                Self::Text => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
                _ => "a list in [ ]".to_owned(),
            },
            Self::Text | Self::Address => "a text in double quotes".to_owned(),
            Self::Duration { .. } => "a duration such as \"5s\" or \"2m\"".to_owned(),
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
            Self::Number { most: f64::MAX, .. } => "a number".to_owned(),
            Self::Number { least, most } => format!("a number from {least} to {most}"),
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

/// The type that is not `null`.
fn kind(part: &Value) -> &str {
    let mut kinds = part["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let one = kinds.find(|kind| *kind != "null");
    part["type"].as_str().or(one).unwrap_or_default()
}

/// The error of a key that a section does not have.
fn unknown(key: &str, keys: &BTreeMap<String, Shape>, all: &Shape) -> String {
    if let Some(near) = nearest(key, keys.keys(), SIMILAR).or_else(|| containing(key, keys)) {
        return format!("there is no such key; did you mean `{near}`?");
    }
    let mut elsewhere = Vec::new();
    all.paths_like(key, "", &mut elsewhere);
    match elsewhere.iter().min_by_key(|path| path.matches('.').count()) {
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
