//! Which of a program's files its caller wants back.

use globset::{GlobBuilder, GlobMatcher};
use isolator_pool::WantedFiles;
use isolator_pool::quote::quoted;

use crate::request::arguments::InvalidArgument;

/// Most patterns of a request, and the longest of them in bytes.
const MAX_GLOBS: usize = 32;
const MAX_GLOB: usize = 256;

/// Which of a program's files its caller wants: pictures, and those that patterns name.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    globs: Vec<(String, GlobMatcher)>,
    most: u64,
}

impl Wanted {
    /// Pictures, and what is named by patterns; `most` bytes of all of them.
    ///
    /// # Errors
    ///
    /// The first pattern that is not valid.
    pub(crate) fn new(globs: Vec<String>, most: u64) -> Result<Self, InvalidArgument> {
        if globs.len() > MAX_GLOBS {
            let message = format!("more than {MAX_GLOBS} patterns");
            return Err(InvalidArgument::new("output_files", message));
        }
        let compile = |(at, glob): (usize, String)| {
            let wrong =
                |message: String| InvalidArgument::new(format!("output_files[{at}]"), message);
            if glob.is_empty() || glob.len() > MAX_GLOB {
                return Err(wrong(format!("a pattern must have 1 to {MAX_GLOB} bytes")));
            }
            // People may write it for the working directory.
            let pattern = glob.strip_prefix("./").unwrap_or(&glob);
            if pattern.starts_with('/') || pattern.split('/').any(|part| part == "..") {
                let glob = quoted(&glob);
                return Err(wrong(format!("{glob} leads out of the working directory")));
            }
            let compiled = GlobBuilder::new(pattern).literal_separator(true).build();
            let compiled = compiled.map_err(|error| wrong(error.kind().to_string()))?;
            Ok((pattern.to_owned(), compiled.compile_matcher()))
        };
        Ok(Self {
            globs: globs.into_iter().enumerate().map(compile).collect::<Result<_, _>>()?,
            most,
        })
    }

    /// The same for the sandbox.
    pub(crate) fn to_sandbox(&self) -> WantedFiles {
        let globs = self.globs.iter().map(|(glob, _)| glob.clone()).collect();
        WantedFiles { globs, pictures: true, most: self.most }
    }

    /// Whether a pattern names the file.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.globs.iter().any(|(_, glob)| glob.is_match(path))
    }

    /// The patterns that match none of the files.
    pub(crate) fn unmatched<'a>(
        &'a self,
        files: &'a [impl AsRef<str>],
    ) -> impl Iterator<Item = &'a str> {
        let is_unmatched = move |(_, glob): &&(String, GlobMatcher)| {
            !files.iter().any(|file| glob.is_match(file.as_ref()))
        };
        self.globs.iter().filter(is_unmatched).map(|(pattern, _)| pattern.as_str())
    }

    /// How many bytes come back at most.
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_is_none_is_named_by_its_place() {
        for (globs, field) in [
            (vec!["*", "[a"], "output_files[1]"),
            (vec![""], "output_files[0]"),
            (vec!["/etc/*"], "output_files[0]"),
            (vec!["a/../b"], "output_files[0]"),
            (vec!["*"; MAX_GLOBS + 1], "output_files"),
        ] {
            let error = Wanted::new(globs.iter().map(|&g| g.to_owned()).collect(), 1).unwrap_err();
            assert_eq!(error.field, field);
        }
        assert_eq!(
            Wanted::new(vec!["./out/*".to_owned()], 1).unwrap().to_sandbox().globs,
            ["out/*"]
        );
    }
}
