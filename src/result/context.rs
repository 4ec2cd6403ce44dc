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
}

impl Caller {
    /// Whether it is a user of the command, with options instead of a tool's arguments, and the output on the screen already.
    pub(super) const fn has_options(self) -> bool {
        matches!(self, Self::CommandLine | Self::Prompt)
    }

    /// The advice in its words: options instead of arguments, if it has those.
    pub(super) fn advise(self, advice: String) -> String {
        if self.has_options() { with_options(&advice) } else { advice }
    }
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
