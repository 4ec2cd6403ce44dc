//! The rules of the configuration that need more than one key, and the problems that were found.

use std::fmt;
use std::path::Path;

use serde_json::Value;

/// Something wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, as `languageSettings.python.cpus`, or the environment variable that set it.
    pub path: String,
    /// The error and its correction.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// The rules that are being checked. All problems are collected, to be reported together.
pub(super) struct Check<'a> {
    /// The keys that are set.
    pub(super) document: &'a Value,
    /// The folder in which relative paths start.
    pub(super) directory: &'a Path,
    pub(super) problems: Vec<Problem>,
}

impl Check<'_> {
    pub(super) fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        let problem = Problem { path: path.into(), message: message.into() };
        // Each language finds a wrong default again.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Reports an invalid regular expression. The last line of the library's message has the reason.
    pub(super) fn pattern(&mut self, path: impl Into<String>, error: &regex::Error) {
        let drawn = error.to_string();
        let reason = drawn.lines().last().unwrap_or_default().trim_start_matches("error: ");
        self.problem(path, format!("is not a regular expression: {reason}"));
    }

    /// Whether the file or the environment sets a key.
    pub(super) fn is_set(&self, path: &str) -> bool {
        path.split('.').try_fold(self.document, |at, key| at.get(key)).is_some()
    }

    /// Reports a number that is out of range, for bounds that depend on other keys.
    pub(super) fn within<T>(&mut self, path: &str, value: T, least: T, most: T)
    where
        T: PartialOrd + fmt::Display,
    {
        if value < least || value > most {
            let message = format!("expected a whole number from {least} to {most}, not {value}");
            self.problem(path, message);
        }
    }

    /// How many of `all` one client can have: three quarters unless the key is set.
    pub(super) fn share(&mut self, path: &str, of_one: &mut usize, all: usize) {
        if self.is_set(path) {
            self.within(path, *of_one, 1, all);
        } else {
            *of_one = three_quarters(all);
        }
    }
}

/// The most that one client can have: at least a quarter is for the others, if there is more than one.
pub(super) const fn three_quarters(all: usize) -> usize {
    let share = all - all.div_ceil(4);
    if share == 0 { 1 } else { share }
}
