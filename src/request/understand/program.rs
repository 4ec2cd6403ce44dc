//! The program of a call: its language, and its source without what is around it.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::quote::quoted;
use serde_json::{Map, Value};

use super::fields::{Field, Kind};
use super::languages::{self, MatchedLanguage};
use super::lines::Style;
use super::markdown::{Block, Markdown};
use super::notebook;
use super::notes::Notes;
use crate::config::{Config, Language};
use crate::request::arguments::InvalidArgument;

/// The field that names the language.
pub(super) const LANGUAGE: &str = "language";
const FILE_NAME: &str = "entrypoint_filename";
const SNIPPET: &str = "snippet_name";

/// Files with their own syntax that the command of another language can run.
const TYPESCRIPT: [&str; 3] = [".ts", ".mts", ".cts"];

/// The parts of a call that make a program.
struct Reader<'a> {
    table: &'a [Field],
    languages: &'a BTreeMap<String, Arc<Language>>,
    notes: &'a mut Notes,
}

/// Finds the language of a program, and takes the source out of Markdown.
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
    let mut reader = Reader { table, languages: &config.languages, notes };
    let Some(code) = table.iter().find(|field| field.kind == Kind::Code) else {
        return if reader.takes(Kind::Language) { reader.language_as_given(given) } else { Ok(()) };
    };
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
        found: &MatchedLanguage<'_>,
    ) -> Result<(), InvalidArgument> {
        let MatchedLanguage { language, extension } = found;
        given.insert(LANGUAGE.to_owned(), Value::String(language.name.clone()));
        let Some(extension) =
            extension.as_ref().filter(|extension| !language.default_file.ends_with(*extension))
        else {
            return Ok(());
        };
        if !self.table.iter().any(|field| field.name == FILE_NAME) {
            if !TYPESCRIPT.contains(&extension.as_str()) || !self.takes(Kind::Code) {
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
        let language = given.get(LANGUAGE).and_then(Value::as_str);
        let known = language.and_then(|name| self.languages.get(name)).map(|known| &**known);
        if known.is_some_and(|known| known.extensions.iter().any(|e| e == ".md")) {
            return Ok(());
        }
        if known.is_none_or(|known| Style::of(known).is_some())
            && let Some(message) = notebook::instead(code, given.contains_key("session"))
        {
            return Err(InvalidArgument::new(field, message));
        }
        let style = known.or_else(|| language_of_file(given, self.languages)).and_then(Style::of);
        let Some(markdown) = Markdown::of(code, style) else { return Ok(()) };
        let found = |tag: &str| languages::find(tag, self.languages).map(|found| found.language);
        if let ([block], Some(language)) = (&markdown.blocks[..], language)
            && found(&block.tag).is_some_and(|found| found.name != language)
        {
            let Block { mark, tag, .. } = block;
            let message = format!(
                "is written in {mark}{tag}, but language is {language}; give the source without {mark}, and the \
                 language that it is written in"
            );
            return Err(InvalidArgument::new(field, message));
        }
        let is_meant = |tag: &str| {
            found(tag).is_some_and(|found| language.is_none_or(|language| found.name == language))
        };
        let Some(block) = markdown.program(is_meant) else { return Ok(()) };
        let Block { mark, tag, .. } = block;
        if language.is_none()
            && let Some(found) = languages::find(tag, self.languages)
        {
            if self.takes(Kind::Language) {
                let name = &found.language.name;
                self.notes.add(LANGUAGE, format!("language: taken as {name}, from {mark}{tag}"));
            }
            self.take(given, tag, &found)?;
        }
        if let Some(Value::String(code)) = given.get_mut(field) {
            block.take_from(code);
        }
        let others = if markdown.has_more { ", and everything outside of them" } else { "" };
        let note =
            format!("{field}: the lines with {mark} around the source were left out{others}");
        self.notes.add(field, note);
        Ok(())
    }

    /// Takes the language of the program's file, by its name, or the only one there is.
    fn language_from_the_rest(&mut self, given: &mut Map<String, Value>) {
        let of_file = language_of_file(given, self.languages);
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

/// The language of the program's file, by its name.
fn language_of_file<'l>(
    given: &Map<String, Value>,
    languages: &'l BTreeMap<String, Arc<Language>>,
) -> Option<&'l Language> {
    let file = given.get(FILE_NAME).and_then(Value::as_str)?;
    languages::of_file(file, languages)
}
