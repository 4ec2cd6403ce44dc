//! The facts about a run that explain its outcome to its caller.

use std::time::Duration;

use isolator_pool::engine::limits::Resources;

use crate::config::{Config, Language};
use crate::packages::Packages;
use crate::request::options::with_options;
use crate::request::understand::Advice;

/// The kind of caller, which decides the advice that helps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A call of a tool.
    Call,
    /// A cell of a session.
    Cell,
    /// A shell command in a session.
    ShellCommand,
    /// The command `isolator run`.
    CommandLine,
    /// A cell of the command `isolator session`.
    Prompt,
    /// A request of an API, which has other names for the arguments.
    Api(&'static ArgumentNames),
}

/// The names that an API has for the arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ArgumentNames {
    /// `entrypoint_code`.
    pub code: &'static str,
    /// `entrypoint_filename`.
    pub file_name: &'static str,
    /// `additional_files`.
    pub files: &'static str,
    /// The number of the first of them.
    pub files_from: usize,
    /// `output_files`.
    pub output_files: &'static str,
    /// `timeout`.
    pub timeout: &'static str,
    /// `memory_mb`, if there is such an argument.
    pub memory: Option<&'static str>,
}

impl ArgumentNames {
    /// A field of the API instead of a call's: the same place in it.
    pub(crate) fn field(&self, field: &str) -> String {
        let end = field.find(['[', '.']).unwrap_or(field.len());
        let (name, place) = field.split_at(end);
        if let ("additional_files", Some((number, rest))) = (name, numbered(place)) {
            let rest = rest.replace("filename", "name");
            return format!("{}[{}]{rest}", self.files, number + self.files_from);
        }
        let all = [
            ("entrypoint_code", self.code),
            ("entrypoint_filename", self.file_name),
            ("additional_files", self.files),
            ("output_files", self.output_files),
            ("timeout", self.timeout),
            ("memory_mb", self.memory.unwrap_or("memory_mb")),
        ];
        let known = all.iter().find(|(argument, _)| *argument == name);
        format!("{}{place}", known.map_or(name, |(_, own)| own))
    }

    /// Advice with the names of the API. Only names that are no plain words can stand for nothing else in a sentence.
    pub(crate) fn advise(&self, advice: &str) -> String {
        advice
            .replace("entrypoint_code", self.code)
            .replace("additional_files", self.files)
            .replace("output_files", self.output_files)
            .replace("memory_mb", self.memory.unwrap_or("memory"))
    }
}

impl Caller {
    /// The advice in its words: options instead of arguments, if it has those.
    pub(super) fn advise(self, advice: String) -> String {
        match self {
            Self::Api(names) => names.advise(&advice),
            Self::CommandLine | Self::Prompt => with_options(&advice),
            Self::Call | Self::Cell | Self::ShellCommand => advice,
        }
    }
}

/// The number at the beginning of a place, and what follows.
fn numbered(place: &str) -> Option<(usize, &str)> {
    let (number, rest) = place.strip_prefix('[')?.split_once(']')?;
    Some((number.parse().ok()?, rest))
}

/// A run, apart from its outcome.
pub(crate) struct Context<'a> {
    /// The configuration with the operator's bounds.
    pub config: &'a Config,
    pub language: &'a Language,
    pub timeout: Duration,
    pub resources: Resources,
    /// An explanation if the language's own tools can't read the program.
    pub advice: Option<&'a Advice>,
    pub caller: Caller,
    /// The names of the files that came with it.
    pub sent: &'a [String],
    /// The packages that it could have had, if the server knows.
    pub packages: Option<PackagesAdvice<'a>>,
}

/// The packages that a program could have had.
pub(crate) struct PackagesAdvice<'a> {
    /// The sets of the server.
    pub packages: &'a Packages,
    /// The sets and requirements that its call asked for.
    pub asked: &'a [String],
}
