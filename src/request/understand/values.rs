//! Values as callers write them, and what they mean.

use std::time::Duration;

use isolator_pool::quote::quoted;
use serde_json::{Map, Number, Value};

use super::fields::{Field, Kind, Meant};
use super::given::{Given, Object};
use super::notes::Notes;
use crate::duration::{self, DurationError};
use crate::request::arguments::{InvalidArgument, shortened};

/// Longest string that is read as JSON, in bytes. Small values take a hundred times the memory of their text.
const MAX_JSON: usize = 64 << 10;

/// Most digits of a number that a note repeats.
const MAX_SHOWN: usize = 60;

/// Longest text of a duration, in bytes.
const MAX_DURATION: usize = 100;

/// The value of a field in its form, or nothing if the caller leaves it out. `at` is its path.
pub(super) fn read(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    match (field.kind, value) {
        (_, Given::Null) => Ok(None),
        (Kind::Name | Kind::Language | Kind::OwnLanguage, Given::String(text)) => {
            Ok(Some(text).filter(|text| !text.trim().is_empty()).map(Value::String))
        }
        (Kind::Path | Kind::Code | Kind::Text, Given::String(text)) => Ok(Some(text.into())),
        (Kind::Text, Given::Number(digits)) => {
            let shown: String = digits.chars().take(MAX_SHOWN).collect();
            notes.add(at, format!("{at}: the number {shown} was taken as text"));
            Ok(Some(digits.into()))
        }
        (Kind::Encoding, Given::String(text)) => encoding(field, &text, at),
        (Kind::Duration | Kind::Seconds, value) => time(field, value, at, notes),
        (Kind::Mebibytes | Kind::Whole, value) => whole(field, value, at, notes),
        (Kind::Number, value) => number(field, value, at, notes),
        (Kind::Switch, value) => switch(field, value, at, notes),
        (Kind::Args | Kind::Patterns | Kind::Packages, value) => list(field, value, at, notes),
        (Kind::Variables, value) => variables(field, value, at, notes),
        (_, value) => Err(wrong(field, &value, at)),
    }
}

/// The kind of a value, in words.
pub(super) const fn kind_of(value: &Given) -> &'static str {
    match value {
        Given::Null => "null",
        Given::Bool(_) => "a boolean",
        Given::Number(_) => "a number",
        Given::String(_) => "a string",
        Given::Array(_) => "a list",
        Given::Object(_) => "an object",
    }
}

/// The error for a value of a wrong type.
pub(super) fn wrong(field: &Field, value: &Given, at: &str) -> InvalidArgument {
    InvalidArgument::new(at, format!("is {}; {}", kind_of(value), field.expected))
}

/// The list or object that a string holds.
pub(super) fn from_json(text: &str) -> Option<Given> {
    let text = text.trim();
    let may_be = text.len() <= MAX_JSON && text.starts_with(['[', '{']);
    may_be.then(|| Given::parse(text).ok()).flatten()
}

/// Notes that a string was read as JSON.
pub(super) fn note_json(at: &str, notes: &mut Notes) {
    notes.add(at, format!("{at}: the JSON in the string was taken instead of the string"));
}

/// Whether a text stands for no value.
fn is_nothing(text: &str) -> bool {
    text.is_empty() || text.eq_ignore_ascii_case("null") || text.eq_ignore_ascii_case("none")
}

/// A number, from a number or a string. Zero is left out: callers that have to send every field send it.
fn some_number(
    field: &Field,
    value: Given,
    at: &str,
    notes: &mut Notes,
) -> Result<Option<Number>, InvalidArgument> {
    let number = match value {
        Given::Number(digits) => finite(&digits).ok_or_else(|| {
            let message = format!("{} is too large; {}", shortened(digits), field.expected);
            InvalidArgument::new(at, message)
        })?,
        Given::String(text) => {
            let trimmed = text.trim();
            let digits = match field.kind {
                Kind::Mebibytes => without_unit(trimmed),
                _ => trimmed,
            };
            if is_nothing(trimmed) {
                return Ok(None);
            }
            let Some(number) = finite(digits) else {
                let message = format!("{} is not a number; {}", quoted(&text), field.expected);
                return Err(InvalidArgument::new(at, message));
            };
            notes.add(at, format!("{at}: {} was taken as {number}", quoted(&text)));
            number
        }
        other => return Err(wrong(field, &other, at)),
    };
    if number.as_f64() == Some(0.0) {
        notes.add(at, format!("{at}: 0 was taken as not given"));
        return Ok(None);
    }
    Ok(Some(number))
}

/// The number that digits are, if it is one of those that can be computed with.
fn finite(digits: &str) -> Option<Number> {
    let number: Number = digits.parse().ok()?;
    number.as_f64().is_some_and(f64::is_finite).then_some(number)
}

/// The digits before a unit of MiB.
fn without_unit(text: &str) -> &str {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let is_known = ["m", "mb", "mib"].iter().any(|known| unit.eq_ignore_ascii_case(known));
    if is_known { digits.trim_end() } else { text }
}

fn number(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    Ok(some_number(field, value, at, notes)?.map(Value::Number))
}

/// A whole number; 64.0 counts as one.
fn whole(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let Some(number) = some_number(field, value, at, notes)? else { return Ok(None) };
    let from_float = || {
        let whole = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n));
        whole.map(|n| n as u64)
    };
    let whole = number.as_u64().or_else(from_float).ok_or_else(|| {
        let message = format!("{number} is not a positive whole number; {}", field.expected);
        InvalidArgument::new(at, message)
    })?;
    Ok(Some(whole.into()))
}

/// A time as a text with its unit. Without a unit it is in seconds.
fn time(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let wrong = |shown: &str| {
        InvalidArgument::new(at, format!("{shown} is not a duration; {}", field.expected))
    };
    let (seconds, shown, is_expected) = match value {
        Given::Number(digits) => {
            let seconds = digits.parse().unwrap_or(f64::NAN);
            (seconds, shortened(digits), field.kind == Kind::Seconds)
        }
        Given::String(text) => {
            let trimmed = text.trim();
            if is_nothing(trimmed) {
                return Ok(None);
            }
            if trimmed.len() > MAX_DURATION {
                return Err(wrong(&quoted(&text)));
            }
            match duration::parse(trimmed) {
                Ok(_) => return Ok(Some(Value::String(trimmed.to_owned()))),
                // A capital M may mean either.
                Err(error @ DurationError::Months) => {
                    let message = format!("{} is not a duration: {error}", quoted(&text));
                    return Err(InvalidArgument::new(at, message));
                }
                Err(_) => {}
            }
            let lower = trimmed.to_lowercase();
            if duration::parse(&lower).is_ok() {
                notes.add(at, format!("{at}: {} was taken as {lower}", quoted(&text)));
                return Ok(Some(Value::String(lower)));
            }
            let shown = quoted(&text);
            (trimmed.parse().map_err(|_| wrong(&shown))?, shown, false)
        }
        other => return Err(self::wrong(field, &other, at)),
    };
    if seconds == 0.0 {
        notes.add(at, format!("{at}: 0 was taken as not given"));
        return Ok(None);
    }
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    let duration = duration::shown(duration.ok_or_else(|| wrong(&shown))?);
    if !is_expected {
        notes.add(at, format!("{at}: {shown} was taken as {duration}"));
    }
    Ok(Some(Value::String(duration)))
}

fn switch(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let (is_on, shown) = match &value {
        Given::Bool(is_on) => return Ok(Some(Value::Bool(*is_on))),
        Given::String(text) if is_nothing(text.trim()) => return Ok(None),
        Given::String(text) => {
            let is = |word: &str| text.trim().eq_ignore_ascii_case(word);
            ((is("true") || is("false")).then(|| is("true")), quoted(text))
        }
        Given::Number(digits) => {
            let number = digits.parse::<f64>();
            let is_on = [0.0, 1.0].iter().position(|known| number.as_ref() == Ok(known));
            (is_on.map(|is_on| is_on == 1), digits.clone())
        }
        _ => (None, String::new()),
    };
    let Some(is_on) = is_on else { return Err(wrong(field, &value, at)) };
    notes.add(at, format!("{at}: {shown} was taken as {is_on}"));
    Ok(Some(Value::Bool(is_on)))
}

/// How a file's content is written.
fn encoding(field: &Field, text: &str, at: &str) -> Meant {
    let name = match text.trim().to_ascii_lowercase().as_str() {
        "" => return Ok(None),
        "utf-8" | "utf8" | "utf_8" | "text" | "plain" | "ascii" | "us-ascii" => "utf-8",
        "base64" | "base-64" | "b64" => "base64",
        _ => {
            let message = format!("{} is not an encoding; {}", quoted(text), field.expected);
            return Err(InvalidArgument::new(at, message));
        }
    };
    Ok(Some(name.into()))
}

/// A list of strings.
fn list(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let items = match value {
        Given::Array(items) => items,
        Given::Object(object) if object.is_empty() => return Ok(None),
        Given::String(text) if text.trim().is_empty() => return Ok(None),
        Given::String(text) => match from_json(&text) {
            Some(json @ Given::Array(_)) => {
                note_json(at, notes);
                return list(field, json, at, notes);
            }
            _ if is_one_item(&text) || is_one_package(field, &text) => {
                notes.add(at, format!("{at}: the string was taken as a list of one"));
                vec![Given::String(text)]
            }
            // Shells would split it, and programs would not.
            _ => {
                return Err(InvalidArgument::new(at, format!("is one string; {}", field.expected)));
            }
        },
        item @ (Given::Number(_) | Given::Bool(_)) => vec![item],
        other => return Err(wrong(field, &other, at)),
    };
    let items = items.into_iter().enumerate();
    let items = items.filter_map(|(index, item)| {
        let at_item = || format!("{at}[{index}]");
        match (field.kind, item) {
            // Nothing matches it.
            (Kind::Patterns, Given::String(text)) if text.is_empty() => None,
            (Kind::Packages, Given::String(text)) if text.trim().is_empty() => None,
            (Kind::Packages, Given::Null) => None,
            (_, Given::String(text)) => Some(Ok(Value::String(text))),
            (Kind::Args, item @ (Given::Number(_) | Given::Bool(_))) => {
                note_as_written(at, notes);
                Some(Ok(Value::String(item.to_string())))
            }
            (_, item) => {
                let message = format!("is {}; {}", kind_of(&item), field.expected);
                Some(Err(InvalidArgument::new(at_item(), message)))
            }
        }
    });
    Ok(Some(Value::Array(items.collect::<Result<_, _>>()?)))
}

/// Whether a string can only be one item, and not several, or a list in another notation.
fn is_one_item(text: &str) -> bool {
    let is_list = text.starts_with(['[', '{']) && text.ends_with([']', '}']);
    !is_list && !text.contains(|c: char| c.is_whitespace() || c == ',')
}

/// Whether a string is one requirement, which can have spaces in it. One with commas may as well be several.
fn is_one_package(field: &Field, text: &str) -> bool {
    field.kind == Kind::Packages && !text.contains([',', '\n', '[', '{'])
}

fn note_as_written(at: &str, notes: &mut Notes) {
    notes.add(
        at,
        format!("{at}: numbers and booleans were taken as the text that JSON has for them"),
    );
}

/// Environment variables, from a list of `NAME=value` or an object. The schema has the list, because several
/// interfaces of models refuse an object whose names are not known.
fn variables(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let object = match value {
        Given::Object(object) => object,
        Given::Array(items) => {
            let pairs = items.iter().enumerate().map(|(index, item)| {
                let pair = item.as_str().and_then(|item| item.split_once('='));
                let (name, value) = pair.ok_or_else(|| {
                    let message = format!("is not NAME=value; {}", field.expected);
                    InvalidArgument::new(format!("{at}[{index}]"), message)
                })?;
                Ok((name.to_owned(), Given::String(value.to_owned())))
            });
            pairs.collect::<Result<Object, _>>()?
        }
        Given::String(text) if text.trim().is_empty() => return Ok(None),
        Given::String(text) => match from_json(&text) {
            Some(json) => {
                note_json(at, notes);
                return variables(field, json, at, notes);
            }
            None if is_one_item(&text) && text.contains('=') => {
                let list = Given::Array(vec![Given::String(text)]);
                return variables(field, list, at, notes);
            }
            None => return Err(wrong(field, &Given::String(text), at)),
        },
        other => return Err(wrong(field, &other, at)),
    };
    let mut variables = Map::new();
    for (name, value) in object {
        let value = match value {
            Given::Null => continue,
            Given::String(text) => text,
            Given::Number(_) | Given::Bool(_) => {
                note_as_written(at, notes);
                value.to_string()
            }
            other => {
                let name: String = name.chars().take(60).collect();
                let message = format!("is {}; give a string", kind_of(&other));
                return Err(InvalidArgument::new(format!("{at}.{name}"), message));
            }
        };
        variables.insert(name, Value::String(value));
    }
    Ok(Some(Value::Object(variables)))
}
