//! The names that callers give to languages.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Language;

/// Longest name that is looked up, in bytes.
const MAX_NAME: usize = 40;

/// Names of languages, and the extension of their files. Extensions are names, too, and need no entry.
const EXTENSIONS: [(&str, &str); 9] = [
    ("cpython", ".py"),
    ("golang", ".go"),
    ("javascript", ".js"),
    ("node", ".js"),
    ("node.js", ".js"),
    ("nodejs", ".js"),
    ("python", ".py"),
    ("shell", ".sh"),
    ("typescript", ".ts"),
];

/// A configured language that a name stands for.
#[derive(Debug)]
pub(crate) struct MatchedLanguage<'c> {
    pub(crate) language: &'c Language,
    /// The extension of its files that was meant, unless the name is that of the language.
    pub(crate) extension: Option<String>,
}

/// Finds the language that a caller means: by its name in any case and with any version, by another usual name, or by
/// the extension of its files.
pub(crate) fn find<'c>(
    name: &str,
    languages: &'c BTreeMap<String, Arc<Language>>,
) -> Option<MatchedLanguage<'c>> {
    let by_name = |name: &str| {
        let mut same = languages.values().filter(|l| l.name.eq_ignore_ascii_case(name));
        same.next().filter(|_| same.next().is_none())
    };
    if let Some(language) = languages.get(name) {
        return Some(MatchedLanguage { language, extension: None });
    }
    if name.len() > MAX_NAME {
        return None;
    }
    let words: String = name.split_whitespace().collect::<String>().to_lowercase();
    let word = words.trim_start_matches('.');
    // Programs for Python 2 are written in another language.
    let unversioned = word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let word = if word.starts_with("python2") { word } else { unversioned };
    if let Some(language) = by_name(&words).or_else(|| by_name(word)) {
        return Some(MatchedLanguage { language, extension: None });
    }
    let known = EXTENSIONS.iter().find(|(known, _)| *known == word);
    let extension = known.map_or_else(|| format!(".{word}"), |(_, known)| (*known).to_owned());
    let language = of_extension(&extension, languages)?;
    Some(MatchedLanguage { language, extension: Some(extension) })
}

/// The only language of a file, by the file's name.
pub(crate) fn of_file<'c>(
    name: &str,
    languages: &'c BTreeMap<String, Arc<Language>>,
) -> Option<&'c Language> {
    let (_, extension) = name.rsplit_once('.')?;
    of_extension(&format!(".{}", extension.to_lowercase()), languages)
}

fn of_extension<'c>(
    extension: &str,
    languages: &'c BTreeMap<String, Arc<Language>>,
) -> Option<&'c Language> {
    let has_it = |language: &&Arc<Language>| language.extensions.iter().any(|e| e == extension);
    let mut found = languages.values().filter(has_it);
    found.next().filter(|_| found.next().is_none()).map(|language| &**language)
}
