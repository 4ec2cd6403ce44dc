//! What the doctor found, as it is printed and counted.

use std::process::ExitCode;

use super::check::Verdict;
use crate::commands::say;

/// Prints what was found, and counts what is wrong.
#[derive(Default)]
pub(super) struct Findings {
    missing: usize,
    /// Findings about the host that the operator did not accept.
    unaccepted: usize,
}

impl Findings {
    pub(super) fn fine(&self, what: &str) {
        say(&format!("  ok       {what}"));
    }

    pub(super) fn warn(&self, what: &str, fix: &str) {
        say(&format!("  warning  {what}\n           {fix}"));
    }

    pub(super) fn missing(&mut self, what: &str, fix: &str) {
        self.missing += 1;
        say(&format!("  MISSING  {what}\n           {fix}"));
    }

    /// Whether nothing is missing so far.
    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Prints what a check of the host found, and counts it unless it is fine or accepted.
    pub(super) fn about_host(&mut self, name: &str, verdict: Verdict, is_accepted: bool) {
        let (kind, what, fix) = match verdict {
            Verdict::Fine(what) => return self.fine(&format!("{name}: {what}")),
            Verdict::Warning { what, .. } | Verdict::NotKnown { what, .. } if is_accepted => {
                return say(&format!("  accepted {name}: {what}"));
            }
            Verdict::Warning { what, fix } => ("warning ", what, fix),
            Verdict::NotKnown { what, fix } => ("unknown ", what, fix),
        };
        self.unaccepted += 1;
        say(&format!("  {kind} {name}: {what}\n           {fix}"));
    }

    /// Prints the last line, and returns the exit code.
    pub(super) fn conclude(&self) -> ExitCode {
        if self.missing > 0 {
            say(&format!("{} thing(s) missing", self.missing));
        } else {
            say("everything is there");
        }
        if self.unaccepted > 0 {
            say(&format!(
                "{} thing(s) about the host to fix, or to accept with --accept NAME",
                self.unaccepted
            ));
        }
        if self.missing + self.unaccepted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
