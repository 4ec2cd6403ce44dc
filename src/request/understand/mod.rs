//! Understands what callers send, and brings it into the form that [`crate::request::arguments`] reads.
//!
//! Models write `null` for what they leave out, a number of seconds for a duration, `code` for `entrypoint_code`. Where
//! a value can mean only one thing, it is taken as that, and a note says so. Anything else is an error that names the
//! field, says what is wrong and what would be right. [`fields`] is the table of what each tool takes.
//!
//! Long texts are moved and never copied: a message can have tens of megabytes.

mod fields;
mod files;
pub(crate) mod given;
pub(crate) mod languages;
mod lines;
mod looks;
mod markdown;
mod notes;
mod program;
mod values;

use serde_json::Value;

use crate::config::Config;
use crate::request::arguments::{self, InvalidArgument};

pub(crate) use fields::Tool;
use given::{Given, Object};
pub(crate) use looks::advice;
pub(crate) use notes::Notes;

/// Reads the arguments of a call, and returns what was understood of those that are not as they should be.
///
/// # Errors
///
/// The first field that is wrong.
pub(crate) fn read<T: Tool>(
    arguments: Given,
    config: &Config,
) -> Result<(T, Notes), InvalidArgument> {
    let mut notes = Notes::default();
    let given = unwrapped(arguments, &mut notes)?;
    let mut given = fields::read(given, T::FIELDS, "", &mut notes)?;
    program::understand(&mut given, T::FIELDS, config, &mut notes)?;
    Ok((arguments::parse(Value::Object(given))?, notes))
}

/// The arguments without the one object that some frameworks put around them.
fn unwrapped(arguments: Given, notes: &mut Notes) -> Result<Object, InvalidArgument> {
    const WRAPPERS: [&str; 7] =
        ["arguments", "args", "input", "kwargs", "parameters", "params", "tool_input"];
    let Given::Object(mut outer) = arguments else {
        let message = format!("is {}; give an object", values::kind_of(&arguments));
        return Err(InvalidArgument::new("arguments", message));
    };
    let only = outer.keys().next().filter(|_| outer.len() == 1);
    let Some(name) = only.filter(|name| WRAPPERS.contains(&name.as_str())).cloned() else {
        return Ok(outer);
    };
    let inner = match outer.get_mut(&name) {
        Some(Given::Object(inner)) if !inner.is_empty() => Some(std::mem::take(inner)),
        _ => None,
    };
    if inner.is_some() {
        notes.add("arguments", format!("the arguments were taken from {name}"));
    }
    Ok(inner.unwrap_or(outer))
}

#[cfg(test)]
mod tests;
