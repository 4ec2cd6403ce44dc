//! Understands what callers send, and brings it into the form that [`crate::request::arguments`] reads.
//!
//! Models write `null` for fields that they leave out, a number of seconds for a duration, `code` for `entrypoint_code`. Where
//! a value can mean only one thing, it is taken as that, and a note says so. Anything else is an error that names the
//! field, the mistake and its correction. [`fields`] is the table of what each tool takes.
//!
//! Long texts are moved and never copied: a message can have tens of megabytes.

mod fields;
mod files;
pub(crate) mod given;
pub(crate) mod languages;
mod lines;
mod looks;
mod markdown;
mod notebook;
mod notes;
mod program;
mod values;

use serde_json::Value;

use crate::config::Config;
use crate::request::arguments::{self, Arguments, InvalidArgument};

pub(crate) use fields::ToolArguments;
use fields::{Field, Kind, Meant};
use given::{Given, Object};
pub(crate) use looks::{Advice, advice};
pub(crate) use notes::Notes;

/// Reads the arguments of a call, and returns what was understood of those that are not as they should be.
pub(crate) fn read<T: ToolArguments>(
    arguments: Given,
    config: &Config,
) -> Result<(T, Notes), InvalidArgument> {
    let mut notes = Notes::default();
    let given = unwrapped(arguments, &mut notes)?;
    understood(given, config, notes)
}

/// Reads the arguments of a cell, whose language is that of its session if the caller names none.
pub(crate) fn read_cell(
    arguments: Given,
    language: &str,
    config: &Config,
) -> Result<(Arguments, Notes), InvalidArgument> {
    let mut notes = Notes::default();
    let mut given = unwrapped(arguments, &mut notes)?;
    if named(&given, program::LANGUAGE).is_none() {
        given.insert(program::LANGUAGE.to_owned(), Given::String(language.to_owned()));
    }
    understood(given, config, notes)
}

/// The handle of the session that a call of `execute_code` names, if it names one. It determines the language, so it is looked for
/// before the arguments are read, wherever and under whatever name they may have it.
pub(crate) fn named_session(arguments: &Given) -> Option<String> {
    let Given::Object(outer) = arguments else { return None };
    let given = wrapped(outer).map_or(outer, |(_, inner)| inner);
    match named(given, "session") {
        Some(Given::String(handle)) => Some(handle.trim().to_owned()),
        _ => None,
    }
}

/// The value of a field of `execute_code` under any of its names, unless it is left out.
fn named<'g>(given: &'g Object, field: &str) -> Option<&'g Given> {
    let is_meant =
        |key: &str| fields::find(Arguments::FIELDS, key).is_some_and(|found| found.name == field);
    let is_left_out = |value: &Given| {
        *value == Given::Null || value.as_str().is_some_and(|text| text.trim().is_empty())
    };
    let found = given.iter().find(|(key, value)| is_meant(key) && !is_left_out(value));
    found.map(|(_, value)| value)
}

fn understood<T: ToolArguments>(
    given: Object,
    config: &Config,
    mut notes: Notes,
) -> Result<(T, Notes), InvalidArgument> {
    let mut given = fields::read(given, T::FIELDS, "", &mut notes, value)?;
    program::understand(&mut given, T::FIELDS, config, &mut notes)?;
    Ok((arguments::parse(Value::Object(given))?, notes))
}

/// Reads the value of a field.
fn value(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    match (field.kind, value) {
        (Kind::Files, value) if value != Given::Null => files::read(field, value, at, notes),
        (_, value) => values::read(field, value, at, notes),
    }
}

/// The arguments without the one object that some frameworks put around them.
fn unwrapped(arguments: Given, notes: &mut Notes) -> Result<Object, InvalidArgument> {
    let Given::Object(mut outer) = arguments else {
        let message = format!("is {}; give an object", values::kind_of(&arguments));
        return Err(InvalidArgument::new("arguments", message));
    };
    let Some(name) = wrapped(&outer).map(|(name, _)| name.to_owned()) else { return Ok(outer) };
    let Some(Given::Object(inner)) = outer.remove(&name) else { return Ok(outer) };
    notes.add("arguments", format!("the arguments were taken from {name}"));
    Ok(inner)
}

/// The object that is around the arguments, by its name, and the arguments, if there is one.
fn wrapped(outer: &Object) -> Option<(&str, &Object)> {
    const WRAPPERS: [&str; 7] =
        ["arguments", "args", "input", "kwargs", "parameters", "params", "tool_input"];
    let (name, value) = outer.iter().next().filter(|_| outer.len() == 1)?;
    match value {
        Given::Object(inner) if !inner.is_empty() && WRAPPERS.contains(&name.as_str()) => {
            Some((name.as_str(), inner))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
