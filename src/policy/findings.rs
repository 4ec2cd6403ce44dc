//! The files of a program, and the violations in them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most violations that are listed.
pub(super) const MAX_LISTED: usize = 20;

/// The rule that is reported for a file that can't be checked.
pub(super) const NOT_CHECKED: &str = "not-checked";

/// A file of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name in the workspace.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
    /// Whether it is what the language's command runs, whatever its name.
    pub is_entrypoint: bool,
}

/// A place in a program that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Violation {
    /// The file.
    pub file: String,
    /// Identifier of the rule.
    pub rule: String,
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
    /// The message of the rule.
    pub message: String,
}

/// The violations in a request's files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The first of the violations.
    pub listed: Vec<Violation>,
    /// The number of others.
    pub more: u64,
}

impl Findings {
    /// Whether the policy has nothing against the program.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    pub(super) fn add(&mut self, violation: impl FnOnce() -> Violation) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(violation());
        } else {
            self.more += 1;
        }
    }

    pub(super) fn extend(&mut self, Self { listed, more }: Self) {
        listed.into_iter().for_each(|violation| self.add(|| violation));
        self.more = self.more.saturating_add(more);
    }

    pub(super) fn unreadable(file: &str, why: impl ToString) -> Violation {
        Violation {
            file: file.to_owned(),
            rule: NOT_CHECKED.to_owned(),
            line: 1,
            column: 1,
            message: why.to_string(),
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, Violation { file, rule, line, column, message }) in
            self.listed.iter().enumerate()
        {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{file}:{line}:{column}: {message} ({rule})")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}
