//! The effective configuration: every key with its value, and where the value comes from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use isolator_pool::pool::sizing::Size;
use serde_json::{Value, json};

use super::document::merge;
use super::language::{INHERITED, Language, built_in};
use super::root::{Config, shape};
use super::shape::Shape;

/// A key with the value that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The key, as `languageSettings.python.cpus`.
    pub key: String,
    /// Its value; `null` if it has none.
    pub value: Value,
    /// Where that comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Isolator's default.
    Default,
    /// Isolator's default, which holds only if something else is configured.
    DefaultIf(&'static str),
    /// The key for all languages.
    Key(&'static str),
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::DefaultIf(condition) => write!(f, "default, if {condition}"),
            Self::Key(key) => f.write_str(key),
            Self::File(file) => file.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::CommandLine => f.write_str("--engine"),
        }
    }
}

impl Config {
    /// Every key with the value that holds.
    pub fn effective(&self) -> Vec<Effective> {
        let document = &self.settings.document;
        let known = json!({ "languageSettings": built_in() });
        // Sections that do not hold, such as sets of a language that is switched off, are only in the document.
        let mut all = document.clone();
        merge(&mut all, &json!(self));
        let mut leaves = Vec::new();
        flatten(shape(), &all, &[], &mut leaves);
        let effective = |Leaf { path, is_text, value }: Leaf| {
            // Paths are shown as they are written.
            let written = at(document, &path).filter(|_| is_text);
            let value = written.cloned().unwrap_or(value);
            Effective { origin: origin(self, &path, &known), key: path.join("."), value }
        };
        leaves.into_iter().map(effective).collect()
    }
}

/// The value of a key in a document.
fn at<'a>(document: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(document, |at, key| at.get(key)).filter(|value| !value.is_null())
}

/// Where the value of a key comes from.
fn origin(config: &Config, path: &[String], built_in: &Value) -> Origin {
    let key = path.join(".");
    if key == "engine.kind" && config.engine.is_chosen_on_command_line {
        return Origin::CommandLine;
    }
    if let Some(variable) = config.settings.variables.get(&key) {
        return Origin::Variable(variable.clone());
    }
    if at(&config.settings.document, path).is_some() {
        return config.file.clone().map_or(Origin::Default, Origin::File);
    }
    if let Some(condition) = condition(config, path) {
        return Origin::DefaultIf(condition);
    }
    match path {
        [section, _, rest @ ..]
            if section == "languageSettings" && at(built_in, path).is_none() =>
        {
            let rest = rest.join(".");
            let common = INHERITED.iter().find(|(own, _)| *own == rest);
            common.map_or(Origin::Default, |(_, key)| Origin::Key(key))
        }
        _ => Origin::Default,
    }
}

/// The setting that a key needs before its default has an effect.
fn condition(config: &Config, path: &[String]) -> Option<&'static str> {
    let path: Vec<_> = path.iter().map(String::as_str).collect();
    let language = |name| config.languages.get(name);
    let has_one_size = |it: &&Arc<Language>| matches!(it.pool.size, Size::Fixed(_));
    match path[..] {
        ["audit", key] if !config.audit.is_on() && key != "path" => Some("audit.path is set"),
        ["sessions", "journals", key]
            if config.sessions.journals.address.is_none() && key != "address" =>
        {
            Some("sessions.journals.address is set")
        }
        ["languageSettings", name, "pool", "target"] => {
            language(name).filter(has_one_size).map(|_| "pool.size is a range")
        }
        ["languageSettings", name, "preload", "memoryMB" | "fork" | "modules"] => {
            let has_none = |it: &&Arc<Language>| it.kernel.is_none();
            language(name).filter(has_none).map(|_| "preload.interpreter is set")
        }
        _ => None,
    }
}

/// A key that is no section, with its value, which is `null` if it has none.
struct Leaf {
    path: Vec<String>,
    is_text: bool,
    value: Value,
}

/// Finds every key and its value.
fn flatten(shape: &Shape, value: &Value, path: &[String], found: &mut Vec<Leaf>) {
    let below = |name: &String| [path, std::slice::from_ref(name)].concat();
    match (shape, value) {
        (Shape::Section { keys, .. }, _) => {
            // Of a language that is off, nothing else matters.
            let is_off = value["enabled"] == false && keys.contains_key("image");
            for (name, shape) in keys.iter().filter(|(name, _)| !is_off || *name == "enabled") {
                flatten(shape, &value[name], &below(name), found);
            }
        }
        (Shape::Names(shape), Value::Object(entries)) => {
            for (name, value) in entries {
                flatten(shape, value, &below(name), found);
            }
        }
        _ => found.push(Leaf {
            path: path.to_vec(),
            is_text: matches!(shape, Shape::Text),
            value: value.clone(),
        }),
    }
}
