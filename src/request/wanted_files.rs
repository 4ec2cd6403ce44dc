//! Which of a program's files its caller wants back.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobMatcher};
use isolator_pool::quote::quoted;
use isolator_pool::run::workspace::below;

use crate::request::arguments::InvalidArgument;

/// Most patterns of a request, and the longest of them in bytes.
pub(crate) const MAX_GLOBS: usize = 32;
const MAX_GLOB: usize = 256;

/// Characters with a special meaning in a pattern.
const SPECIAL: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// Which of a program's files its caller wants: pictures, and those that patterns name.
#[derive(Debug, Clone)]
pub(crate) struct OutputFiles {
    patterns: Vec<Pattern>,
    most: u64,
}

/// The name of a file, or a pattern of names.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// The pattern, or why it is none and can only be a name.
    glob: Result<GlobMatcher, globset::Error>,
}

impl Pattern {
    /// `None` if it leads out of the working directory.
    fn new(text: &str, workdir: &str) -> Option<Self> {
        let mut text = below(workdir, text);
        while let Some(rest) = text.strip_prefix("./") {
            text = rest.trim_start_matches('/');
        }
        if text.is_empty() || text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return None;
        }
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        Some(Self { text: text.to_owned(), glob: glob.map(|glob| glob.compile_matcher()) })
    }

    /// The names that it has as a pattern.
    fn matches(&self, path: &str) -> bool {
        self.glob.as_ref().is_ok_and(|glob| glob.is_match(path))
    }

    /// Patterns of the file that has this very name, and of those that the pattern names.
    fn globs(&self) -> impl Iterator<Item = String> {
        let name = self.text.contains(SPECIAL).then(|| {
            let escaped = |c| [Some('\\').filter(|_| SPECIAL.contains(&c)), Some(c)];
            self.text.chars().flat_map(escaped).flatten().collect()
        });
        let pattern = self.glob.is_ok().then(|| self.text.clone());
        name.into_iter().chain(pattern)
    }
}

impl OutputFiles {
    /// Pictures, and what is named by patterns; `most` bytes of all of them.
    ///
    /// # Errors
    ///
    /// The first pattern that leads out of the working directory.
    pub(crate) fn new(
        patterns: Vec<String>,
        workdir: &str,
        most: u64,
    ) -> Result<Self, InvalidArgument> {
        if patterns.len() > MAX_GLOBS {
            let message = format!("more than {MAX_GLOBS} patterns");
            return Err(InvalidArgument::new("output_files", message));
        }
        let compile = |(at, text): (usize, String)| {
            let wrong =
                |message: String| InvalidArgument::new(format!("output_files[{at}]"), message);
            if text.is_empty() || text.len() > MAX_GLOB {
                return Err(wrong(format!("a pattern must have 1 to {MAX_GLOB} bytes")));
            }
            Pattern::new(&text, workdir).ok_or_else(|| {
                let text = quoted(&text);
                wrong(format!("{text} names no file in the working directory, {workdir}"))
            })
        };
        let patterns = patterns.into_iter().enumerate().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { patterns, most })
    }

    /// Only pictures.
    pub(crate) const fn none(most: u64) -> Self {
        Self { patterns: Vec::new(), most }
    }

    /// The request to the sandbox.
    pub(crate) fn to_sandbox(&self) -> isolator_pool::WantedFiles {
        let globs = self.patterns.iter().flat_map(Pattern::globs).collect();
        isolator_pool::WantedFiles { globs, pictures: true, most: self.most }
    }

    /// The files that are named: each pattern names the file with exactly its text, or else those that match it. Also remarks on
    /// patterns that name none.
    pub(crate) fn named<'p>(&self, paths: &[&'p str]) -> (BTreeSet<&'p str>, Vec<String>) {
        let (mut named, mut notes) = (BTreeSet::new(), Vec::new());
        let all: BTreeSet<_> = paths.iter().copied().collect();
        for pattern in &self.patterns {
            if let Some(path) = all.get(pattern.text.replace("\\x", "\\x5cx").as_str()) {
                named.insert(*path);
                continue;
            }
            let mut matching = all.iter().filter(|path| pattern.matches(path)).peekable();
            if matching.peek().is_none() {
                let text = quoted(&pattern.text);
                let why = pattern.glob.as_ref().err();
                let why = why.map(|why| format!(", and is no pattern: {}", why.kind()));
                let why = why.unwrap_or_default();
                notes.push(format!(
                    "output_files: {text} matches no file that the program created or changed{why}"
                ));
            }
            named.extend(matching);
        }
        (named, notes)
    }

    /// Maximum bytes of the files that come back.
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(patterns: &[&str]) -> Result<OutputFiles, InvalidArgument> {
        OutputFiles::new(patterns.iter().map(|&text| text.to_owned()).collect(), "/workspace", 1)
    }

    #[test]
    fn a_pattern_that_is_none_is_named_by_its_place() {
        for (patterns, field) in [
            (vec!["*", ""], "output_files[1]"),
            (vec!["/etc/*"], "output_files[0]"),
            (vec!["/workspace"], "output_files[0]"),
            (vec!["/workspace/"], "output_files[0]"),
            (vec!["/workspace2/a"], "output_files[0]"),
            (vec!["/workspace/../a"], "output_files[0]"),
            (vec!["a/../b"], "output_files[0]"),
            (vec!["*"; MAX_GLOBS + 1], "output_files"),
        ] {
            assert_eq!(wanted(&patterns).unwrap_err().field, field, "{patterns:?}");
        }
    }

    #[test]
    fn the_name_comes_before_the_pattern() {
        let paths = ["a.csv", "r1.csv", "r[1].csv", "{a,b}.txt", "a.txt", "[x", "d/a.csv", "a\\*"];
        for (pattern, named) in [
            ("r[1].csv", &["r[1].csv"][..]),
            ("r[12].csv", &["r1.csv"]),
            ("{a,b}.txt", &["{a,b}.txt"]),
            ("{a,c}.txt", &["a.txt"]),
            ("[x", &["[x"]),
            ("a\\*", &["a\\*"]),
            ("/workspace/a.csv", &["a.csv"]),
            ("/workspace//./d/*", &["d/a.csv"]),
            ("././a.csv", &["a.csv"]),
        ] {
            let wanted = wanted(&[pattern]).unwrap();
            assert_eq!(wanted.named(&paths).0, BTreeSet::from_iter(named.iter().copied()));
            // The sandbox must send at least those.
            let is_sent = |path: &&&str| {
                let matches = |glob: String| {
                    let glob = GlobBuilder::new(&glob).literal_separator(true).build();
                    glob.unwrap().compile_matcher().is_match(path)
                };
                wanted.to_sandbox().globs.into_iter().any(matches)
            };
            assert!(named.iter().all(|path| is_sent(&path)), "{pattern}");
        }
        let (_, notes) = wanted(&["[y", "*.png", "a.csv"]).unwrap().named(&paths);
        assert_eq!(notes.len(), 2);
        assert!(notes[0].contains("no pattern: unclosed character class"), "{}", notes[0]);
    }
}
