//! The program of a call: its language, and its source without what is around it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use isolator_pool::quote::quoted;
use serde_json::{Map, Value};

use super::fields::{Field, Kind};
use super::languages::{self, Found};
use super::notes::Notes;
use crate::config::{Config, Language};
use crate::request::arguments::InvalidArgument;

const LANGUAGE: &str = "language";
const FILE_NAME: &str = "entrypoint_filename";
const SNIPPET: &str = "snippet_name";

/// A line that begins or ends a block of code in Markdown.
const FENCE: &str = "```";

/// Files with syntax of their own that another language's command runs all the same.
const TYPESCRIPT: [&str; 3] = [".ts", ".mts", ".cts"];

/// What is needed to understand a program.
struct Reader<'a> {
    table: &'a [Field],
    languages: &'a BTreeMap<String, Arc<Language>>,
    notes: &'a mut Notes,
}

/// Finds out which language is meant, and takes the source out of Markdown.
///
/// # Errors
///
/// When it contradicts itself.
pub(super) fn understand(
    given: &mut Map<String, Value>,
    table: &[Field],
    config: &Config,
    notes: &mut Notes,
) -> Result<(), InvalidArgument> {
    let Some(code) = table.iter().find(|field| field.kind == Kind::Code) else { return Ok(()) };
    let mut reader = Reader { table, languages: &config.languages, notes };
    let is_snippet = given.contains_key(SNIPPET);
    // Callers that have to send every field send an empty one.
    if is_snippet && given.get(code.name).is_some_and(|code| code == "") {
        given.remove(code.name);
    }
    reader.language_as_given(given)?;
    if is_snippet || !given.contains_key(code.name) {
        return Ok(());
    }
    reader.source(given, code.name)?;
    if reader.takes(Kind::Language) && !given.contains_key(LANGUAGE) {
        reader.language_from_the_rest(given);
    }
    Ok(())
}

impl Reader<'_> {
    fn takes(&self, kind: Kind) -> bool {
        self.table.iter().any(|field| field.kind == kind)
    }

    /// Takes the language by the name that the caller uses.
    fn language_as_given(&mut self, given: &mut Map<String, Value>) -> Result<(), InvalidArgument> {
        let Some(Value::String(name)) = given.get(LANGUAGE) else { return Ok(()) };
        let Some(found) = languages::find(name, self.languages) else { return Ok(()) };
        let name = name.clone();
        if found.extension.is_some() {
            let note = format!("language: {} was taken as {}", quoted(&name), found.language.name);
            self.notes.add(LANGUAGE, note);
        }
        self.take(given, &name, &found)
    }

    /// Takes a language, and gives the program's file the extension that was meant.
    fn take(
        &mut self,
        given: &mut Map<String, Value>,
        name: &str,
        found: &Found<'_>,
    ) -> Result<(), InvalidArgument> {
        let Found { language, extension } = found;
        given.insert(LANGUAGE.to_owned(), Value::String(language.name.clone()));
        let Some(extension) =
            extension.as_ref().filter(|extension| !language.default_file.ends_with(*extension))
        else {
            return Ok(());
        };
        if !self.table.iter().any(|field| field.name == FILE_NAME) {
            if !TYPESCRIPT.contains(&extension.as_str()) {
                return Ok(());
            }
            let message = format!(
                "{} can be run with execute_code, but this tool reads only plain {}",
                quoted(name),
                language.name
            );
            return Err(InvalidArgument::new(LANGUAGE, message));
        }
        if !given.contains_key(FILE_NAME) && !given.contains_key(SNIPPET) {
            let file = format!("main{extension}");
            self.notes.add(FILE_NAME, format!("the program was run as {file}"));
            given.insert(FILE_NAME.to_owned(), Value::String(file));
        }
        Ok(())
    }

    /// Takes the source out of the block of Markdown that it is written in.
    fn source(
        &mut self,
        given: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), InvalidArgument> {
        let Some(Value::String(code)) = given.get(field) else { return Ok(()) };
        let Some((tag, inside)) = fenced(code) else { return Ok(()) };
        let found = languages::find(tag, self.languages);
        if !tag.is_empty() && found.is_none() {
            return Ok(());
        }
        let tag = tag.to_owned();
        let language = given.get(LANGUAGE).and_then(Value::as_str);
        let known = language.and_then(|name| self.languages.get(name));
        if known.is_some_and(|known| known.extensions.iter().any(|e| e == ".md")) {
            return Ok(());
        }
        match (found, language) {
            (Some(found), None) => {
                if self.takes(Kind::Language) {
                    let name = &found.language.name;
                    self.notes
                        .add(LANGUAGE, format!("language: taken as {name}, from {FENCE}{tag}"));
                }
                self.take(given, &tag, &found)?;
            }
            (Some(found), Some(language)) if found.language.name != language => {
                let message = format!(
                    "begins with {FENCE}{tag}, but language is {language}; give the source without \
                     {FENCE}, and the language that it is written in"
                );
                return Err(InvalidArgument::new(field, message));
            }
            _ => {}
        }
        if let Some(Value::String(code)) = given.get_mut(field) {
            code.truncate(inside.end);
            code.drain(..inside.start);
        }
        self.notes
            .add(field, format!("{field}: the lines with {FENCE} around the source were left out"));
        Ok(())
    }

    /// Takes the language that the name of the program's file tells, or the only one there is.
    fn language_from_the_rest(&mut self, given: &mut Map<String, Value>) {
        let file = given.get(FILE_NAME).and_then(Value::as_str);
        let of_file = file.and_then(|file| languages::of_file(file, self.languages));
        let mut all = self.languages.values();
        let only = all.next().filter(|_| all.next().is_none());
        let (language, why) = match (of_file, only) {
            (Some(language), _) => (language, "from the name of the file"),
            (None, Some(language)) => (&**language, "the only one there is"),
            (None, None) => return,
        };
        self.notes.add(LANGUAGE, format!("language: taken as {}, {why}", language.name));
        given.insert(LANGUAGE.to_owned(), Value::String(language.name.clone()));
    }
}

/// The source in the only block of a Markdown text that has nothing else, and the word after the block's beginning.
fn fenced(code: &str) -> Option<(&str, Range<usize>)> {
    let before = code.len() - code.trim_start().len();
    let block = code.trim().strip_prefix(FENCE)?;
    let (first, rest) = block.split_once('\n')?;
    let inside = rest.strip_suffix(FENCE)?.strip_suffix('\n')?;
    if inside.contains(FENCE) || first.contains('`') {
        return None;
    }
    let start = before + FENCE.len() + first.len() + 1;
    let tag = first.split_whitespace().next().unwrap_or_default();
    Some((tag, start..start + inside.len()))
}
