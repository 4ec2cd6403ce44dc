//! Snippets: stored programs, one file each, in one folder.
//!
//! The folder is read on every use, so changes take effect at once. A name is only compared with the names in the
//! folder; no path is made from it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use isolator_pool::quote::quoted;

use crate::config::Config;
use crate::reread;

/// Longest name.
const MAX_NAME: usize = 64;

/// Longest description, in characters: every listing of the tools carries all of them.
const MAX_DESCRIPTION: usize = 200;

/// The last line of a snippet that can say how it is called.
const MAX_USAGE_LINE: usize = 10;

/// Largest snippet, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The folder of snippets.
#[derive(Debug, Clone)]
pub(crate) struct Snippets {
    folder: PathBuf,
    /// Languages by the extensions of their files.
    extensions: BTreeMap<String, String>,
}

/// A stored program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snippet {
    pub name: String,
    pub language: String,
    pub file_name: String,
    /// Its source.
    pub code: String,
}

/// A stored program as it is listed, without its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnippetSummary {
    pub name: String,
    pub language: String,
    pub file_name: String,
    /// The description in its first line.
    pub description: String,
    /// Its usage, if a line at its beginning has it.
    pub usage: Option<String>,
}

/// A version of a snippet's file, which differs after each change of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnippetVersion {
    file_name: String,
    file: reread::Version,
}

/// Why a snippet can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnippetError {
    /// The name is not one that a snippet can have.
    #[error(
        "{} is not a valid snippet name: use up to {MAX_NAME} letters, digits, - and _",
        quoted(.0)
    )]
    BadName(String),
    /// No snippet has this name.
    #[error("there is no snippet {name:?}; {}", match .known.as_slice() {
        [] => "none is stored".to_owned(),
        known => format!("there are: {}", known.join(", ")),
    })]
    Unknown {
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// Several files have the name.
    #[error("several files have the name {name:?} ({}); the operator must rename one", .files.join(", "))]
    Ambiguous { name: String, files: Vec<String> },
    /// The file can't be used.
    #[error("snippet {name:?} can't be read: {error}")]
    Unreadable {
        name: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

/// A file of the folder that is a snippet.
struct SnippetFile {
    name: String,
    language: String,
    file_name: String,
    path: PathBuf,
}

impl Snippets {
    /// The configuration's snippets.
    pub(crate) fn new(config: &Config) -> Self {
        let mut extensions = BTreeMap::new();
        for language in config.languages.values() {
            for extension in &language.extensions {
                let extension = extension.trim_start_matches('.').to_owned();
                extensions.entry(extension).or_insert_with(|| language.name.clone());
            }
        }
        Self { folder: config.prompts.clone(), extensions }
    }

    /// All snippets that can be named, in order of their names.
    pub(crate) fn list(&self) -> Vec<SnippetSummary> {
        let describe = |entry: &SnippetFile| {
            let start = read_start(&entry.path).unwrap_or_default();
            let (description, usage) = (description(&start), usage(&start));
            let SnippetFile { name, language, file_name, .. } = entry;
            let (name, language, file_name) = (name.clone(), language.clone(), file_name.clone());
            SnippetSummary { name, language, file_name, description, usage }
        };
        let entries = self.entries();
        // Files of one name are neighbours.
        let alone = entries.chunk_by(|a, b| a.name == b.name).filter(|same| same.len() == 1);
        alone.flatten().map(describe).collect()
    }

    /// The state of the files, with the names of their snippets.
    pub(crate) fn versions(&self) -> Vec<(String, SnippetVersion)> {
        let version = |entry: SnippetFile| {
            // One that has just gone is not there.
            let metadata = fs::symlink_metadata(&entry.path).ok()?;
            let file = reread::Version::of(&metadata);
            let version = SnippetVersion { file_name: entry.file_name, file };
            Some((entry.name, version))
        };
        self.entries().into_iter().filter_map(version).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Result<Snippet, SnippetError> {
        if !is_name(name) {
            return Err(SnippetError::BadName(name.to_owned()));
        }
        let all = self.entries();
        let mut found: Vec<&SnippetFile> = all.iter().filter(|entry| entry.name == name).collect();
        let Some(entry) = found.pop() else {
            let known = all.into_iter().map(|entry| entry.name).collect();
            return Err(SnippetError::Unknown { name: name.to_owned(), known });
        };
        if !found.is_empty() {
            found.push(entry);
            let files = found.into_iter().map(|entry| entry.file_name.clone()).collect();
            return Err(SnippetError::Ambiguous { name: name.to_owned(), files });
        }
        let unreadable = |error| SnippetError::Unreadable { name: name.to_owned(), error };
        let code = read(&entry.path).map_err(unreadable)?;
        Ok(Snippet {
            name: entry.name.clone(),
            language: entry.language.clone(),
            file_name: entry.file_name.clone(),
            code,
        })
    }

    /// The files with the extension of a language that can't be used, and why.
    pub(crate) fn left_out(&self) -> io::Result<Vec<(String, String)>> {
        let mut left_out = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let file_name = file.file_name().to_string_lossy().into_owned();
            let Some((name, extension)) = file_name.rsplit_once('.') else { continue };
            if !self.extensions.contains_key(extension) {
                continue;
            }
            let why = match self.entry(&file) {
                Some(_) => self.get(name).err().map(|error| error.to_string()),
                None if is_name(name) => Some("it is no ordinary file".to_owned()),
                None => Some(SnippetError::BadName(name.to_owned()).to_string()),
            };
            left_out.extend(why.map(|why| (file_name.clone(), why)));
        }
        left_out.sort_unstable();
        Ok(left_out)
    }

    fn entries(&self) -> Vec<SnippetFile> {
        let folder = match fs::read_dir(&self.folder) {
            Ok(folder) => folder,
            Err(error) => {
                // A server without snippets is fine.
                let folder = self.folder.display();
                tracing::debug!(%folder, %error, "there are no snippets");
                return Vec::new();
            }
        };
        let mut entries: Vec<SnippetFile> =
            folder.flatten().filter_map(|file| self.entry(&file)).collect();
        entries.sort_unstable_by(|a, b| (&a.name, &a.file_name).cmp(&(&b.name, &b.file_name)));
        entries
    }

    fn entry(&self, file: &fs::DirEntry) -> Option<SnippetFile> {
        // Not following links: a link could lead anywhere.
        if !file.file_type().ok()?.is_file() {
            return None;
        }
        let file_name = file.file_name().to_str()?.to_owned();
        let (name, extension) = file_name.rsplit_once('.')?;
        let language = self.extensions.get(extension)?.clone();
        is_name(name).then(|| SnippetFile {
            name: name.to_owned(),
            language,
            path: file.path(),
            file_name: file_name.clone(),
        })
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(allowed)
}

fn read(path: &Path) -> io::Result<String> {
    if fs::symlink_metadata(path)?.len() > MAX_SIZE {
        return Err(io::Error::other(format!("it is larger than {MAX_SIZE} bytes")));
    }
    fs::read_to_string(path)
}

/// The beginning of a file, as far as a description may reach.
fn read_start(path: &Path) -> io::Result<String> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(1024).read_to_end(&mut start)?;
    Ok(String::from_utf8_lossy(&start).into_owned())
}

/// The description in a snippet's first line, without the marks of a comment.
fn description(code: &str) -> String {
    let lines = code.trim_start_matches('\u{feff}').lines().filter(|line| !is_setting(line));
    let mut texts = lines.map(|line| line.trim_matches(['/', '#', '"', '\'', '*', ' ', '\t']));
    let text = texts.find(|text| !text.is_empty());
    text.unwrap_or_default().chars().take(MAX_DESCRIPTION).collect()
}

/// The usage of a snippet: the line that begins with `Usage:`, up to a gap, after which comes an explanation.
pub(crate) fn usage(code: &str) -> Option<String> {
    let mut lines = code.lines().take(MAX_USAGE_LINE);
    let usage = lines.find_map(|line| {
        line.trim_start_matches(['/', '#', '*', '"', '\'', ' ', '\t']).strip_prefix("Usage: ")
    })?;
    let usage = usage.split("   ").next().unwrap_or_default().trim();
    Some(usage.chars().take(MAX_DESCRIPTION).collect())
}

/// A remark on a snippet that was called without anything to work on.
pub(crate) fn not_used(usage: &str) -> String {
    format!("the snippet got no arguments and no standard input; its usage: {usage}")
}

/// Whether a line is for an interpreter, a compiler, an editor or a linter, and not for a person.
fn is_setting(line: &str) -> bool {
    const BEGINNINGS: [&str; 12] = [
        "#!",
        "//go:",
        "// +build",
        "// @ts-",
        "// eslint",
        "/* eslint",
        "# pylint:",
        "# ruff:",
        "# noqa",
        "# type:",
        "# mypy:",
        "package ",
    ];
    let is_comment = line.starts_with(['#', '/']);
    let names_encoding = line.contains("coding:") || line.contains("coding=");
    let is_of_editor = line.contains("-*-") || line.contains(" vim:") || line.contains(" vi:");
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
        || is_comment && (names_encoding || is_of_editor)
        || line.trim_matches(['"', '\'', ';', ' ']) == "use strict"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Snippets) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("prompts")).unwrap();
        for (name, code) in files {
            fs::write(folder.path().join("prompts").join(name), code).unwrap();
        }
        let config = Config::parse("{}", None, folder.path()).unwrap();
        let snippets = Snippets::new(&config);
        (folder, snippets)
    }

    #[test]
    fn a_snippet_is_found_by_its_base_name_and_its_language_by_the_extension() {
        let (_folder, snippets) = folder(&[("hello.mjs", "// Greets.\n"), ("notes.txt", "no")]);
        let snippet = snippets.get("hello").unwrap();
        assert_eq!(
            (snippet.language.as_str(), snippet.file_name.as_str()),
            ("javascript", "hello.mjs")
        );
        let listed = SnippetSummary {
            name: snippet.name,
            language: snippet.language,
            file_name: snippet.file_name,
            description: "Greets.".to_owned(),
            usage: None,
        };
        assert_eq!(snippets.list(), [listed]);
    }

    #[test]
    fn a_change_on_disk_is_seen_at_once() {
        let (folder, snippets) = folder(&[]);
        assert!(matches!(snippets.get("new"), Err(SnippetError::Unknown { .. })));
        fs::write(folder.path().join("prompts/new.py"), "\"\"\"New.\"\"\"\n").unwrap();
        assert_eq!(snippets.get("new").unwrap().code, "\"\"\"New.\"\"\"\n");
        assert_eq!(snippets.list()[0].description, "New.");
    }

    #[test]
    fn a_description_is_the_first_line_for_people() {
        for code in [
            "# Greets.",
            "\u{feff}# Greets.",
            "\u{feff}#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n\"\"\"Greets.\n\nMore.\n\"\"\"",
            "# coding=latin-1\n# vim: set ts=4 :\n\n\"\"\"\nGreets.\n\"\"\"",
            "'use strict';\n// Greets.",
            "// @ts-check\n/**\n * Greets.\n */",
            "//go:build linux\n// +build linux\n\npackage main\n\n// Greets.",
            "#\r\n# Greets.\r\n",
        ] {
            assert_eq!(description(code), "Greets.", "{code}");
        }
        assert_eq!(description("# Encoding of `text`"), "Encoding of `text`");
        assert_eq!(description(""), "");
    }

    #[test]
    fn the_line_of_usage_is_found() {
        for code in [
            "// Greets.\n// Usage: greet [NAME]   (or the world)\n",
            "\"\"\"Greets.\n\nUsage: greet [NAME]\n\"\"\"\n",
            "# Greets.\r\n# Usage: greet [NAME]\r\n",
        ] {
            assert_eq!(usage(code).as_deref(), Some("greet [NAME]"), "{code}");
        }
        assert_eq!(usage("# Greets.\nprint('Usage: ')\n"), None);
    }

    #[test]
    fn no_name_and_no_link_leads_outside() {
        let (folder, snippets) = folder(&[]);
        fs::write(folder.path().join("secret.py"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret.py", folder.path().join("prompts/link.py")).unwrap();
        for name in ["../secret", "..", "", "a/b", "secret.py", "a\0b", &"x".repeat(65)] {
            assert!(matches!(snippets.get(name), Err(SnippetError::BadName(_))), "{name:?}");
        }
        assert!(matches!(snippets.get("link"), Err(SnippetError::Unknown { .. })));
    }

    #[test]
    fn two_files_of_one_name_are_ambiguous_and_not_listed() {
        let (_folder, snippets) = folder(&[("a.py", ""), ("a-b.py", ""), ("a.js", "")]);
        assert!(matches!(snippets.get("a"), Err(SnippetError::Ambiguous { .. })));
        let names: Vec<_> = snippets.list().into_iter().map(|snippet| snippet.name).collect();
        assert_eq!(names, ["a-b"]);
    }

    #[test]
    fn a_version_is_another_one_after_a_change() {
        let (folder, snippets) = folder(&[("a.py", "1"), ("b.py", "1")]);
        let before = snippets.versions();
        assert_eq!(snippets.versions(), before);
        fs::write(folder.path().join("prompts/a.py"), "12").unwrap();
        let after = snippets.versions();
        assert_eq!((after[0] == before[0], after[1] == before[1]), (false, true));
    }

    #[test]
    fn a_snippet_that_is_no_text_is_an_error() {
        let (folder, snippets) = folder(&[]);
        fs::write(folder.path().join("prompts/bad.py"), [0xff, 0xfe]).unwrap();
        assert!(matches!(snippets.get("bad"), Err(SnippetError::Unreadable { .. })));
    }
}
