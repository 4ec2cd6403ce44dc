//! Files as callers write them.

use serde_json::Value;

use super::fields::{self, FILE, Field, Meant};
use super::given::{Given, Object};
use super::notes::Notes;
use super::values::{self, kind_of};
use crate::request::arguments::InvalidArgument;

/// A list of files, from a list, a single file, or an object of names and contents.
pub(super) fn read(field: &Field, value: Given, at: &str, notes: &mut Notes) -> Meant {
    let files = match value {
        Given::Array(files) => files,
        Given::Object(object) if object.is_empty() => return Ok(None),
        Given::Object(object) if is_file(&object) => {
            notes.add(at, format!("{at}: the object was taken as a list of one file"));
            vec![Given::Object(object)]
        }
        Given::Object(object) => {
            notes.add(at, format!("{at}: the object was taken as names and contents of files"));
            object.into_iter().map(|(name, file)| named(name, file)).collect()
        }
        Given::String(text) if text.trim().is_empty() => return Ok(None),
        Given::String(text) => {
            let Some(json) = values::from_json(&text) else {
                return Err(values::wrong(field, &Given::String(text), at));
            };
            values::note_json(at, notes);
            return read(field, json, at, notes);
        }
        other => return Err(values::wrong(field, &other, at)),
    };
    let files = files.into_iter().enumerate();
    let files = files.map(|(index, file)| one(field, file, &format!("{at}[{index}]"), notes));
    Ok(Some(Value::Array(files.collect::<Result<_, _>>()?)))
}

/// Whether an object is a file rather than the names and contents of several: it has a file's name.
fn is_file(object: &Object) -> bool {
    object.keys().any(|key| fields::find(FILE, key).is_some_and(|field| field.name == FILENAME))
}

const FILENAME: &str = "filename";
const CONTENT: &str = "content";

/// A file from its name, and its content or the rest of it.
fn named(name: String, file: Given) -> Given {
    let mut object = match file {
        Given::Object(object) if object.contains_key(CONTENT) => object,
        content => Object::from([(CONTENT.to_owned(), content)]),
    };
    object.insert(FILENAME.to_owned(), Given::String(name));
    Given::Object(object)
}

fn one(field: &Field, file: Given, at: &str, notes: &mut Notes) -> Result<Value, InvalidArgument> {
    let Given::Object(mut file) = file else {
        return Err(InvalidArgument::new(at, format!("is {}; {}", kind_of(&file), field.expected)));
    };
    write_json(&mut file, at, notes);
    let mut file = fields::read(file, FILE, &format!("{at}."), notes, values::read)?;
    for required in [FILENAME, CONTENT] {
        if !file.contains_key(required) {
            let message = "is required: every file has a filename and content".to_owned();
            return Err(InvalidArgument::new(format!("{at}.{required}"), message));
        }
    }
    if file.get("encoding").is_some_and(|encoding| encoding == "base64")
        && let Some(Value::String(content)) = file.get_mut(CONTENT)
    {
        in_one_line(content);
    }
    Ok(Value::Object(file))
}

/// Writes the content of a JSON file that a caller gave as the value itself.
fn write_json(file: &mut Object, at: &str, notes: &mut Notes) {
    let is_json = |value: &Given| value.as_str().is_some_and(|name| name.ends_with(".json"));
    if !file.values().any(is_json) {
        return;
    }
    for (key, value) in file {
        let is_content = fields::find(FILE, key).is_some_and(|field| field.name == CONTENT);
        if is_content && matches!(value, Given::Array(_) | Given::Object(_)) {
            *value = Given::String(value.to_string());
            notes.add(at, format!("{at}.{CONTENT}: the value was written to the file as JSON"));
        }
    }
}

/// Removes the line breaks that many programs put into base64, and adds the padding that some leave out.
fn in_one_line(content: &mut String) {
    if content.contains(|c: char| c.is_ascii_whitespace()) {
        content.retain(|c| !c.is_ascii_whitespace());
    }
    let padding = [0, 0, 2, 1][content.len() % 4];
    content.extend(std::iter::repeat_n('=', padding));
}
