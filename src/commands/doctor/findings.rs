//! The findings of the doctor, as they are printed and counted.

use std::process::ExitCode;

use super::check::Verdict;
use crate::commands::advice::with_options;
use crate::commands::say;

/// Prints what was found, and counts what is wrong.
#[derive(Default)]
pub(super) struct Findings {
    /// Why a line could not be printed. No more lines are.
    unprinted: Option<anyhow::Error>,
    missing: usize,
    warnings: usize,
    /// Findings about the host that the operator did not accept.
    unaccepted: usize,
    /// The lines so far, for a test, instead of printing them.
    #[cfg(test)]
    recorded: Option<String>,
}

impl Findings {
    /// Records what is printed.
    #[cfg(test)]
    pub(super) fn recorded() -> Self {
        Self { recorded: Some(String::new()), ..Self::default() }
    }

    /// The lines that were recorded.
    #[cfg(test)]
    pub(super) fn said(self) -> String {
        self.recorded.unwrap_or_default()
    }

    /// Begins a part with its title.
    pub(super) fn part(&mut self, title: &str) {
        self.say(title);
    }

    fn say(&mut self, line: &str) {
        #[cfg(test)]
        if let Some(recorded) = &mut self.recorded {
            recorded.push_str(line);
            recorded.push('\n');
            return;
        }
        if self.unprinted.is_none() {
            self.unprinted = say(&with_options(line)).err();
        }
    }

    pub(super) fn fine(&mut self, what: &str) {
        self.say(&format!("  ok       {what}"));
    }

    pub(super) fn warn(&mut self, what: &str, fix: &str) {
        self.warnings += 1;
        self.say(&format!("  warning  {what}\n           {fix}"));
    }

    pub(super) fn missing(&mut self, what: &str, fix: &str) {
        self.missing += 1;
        self.say(&format!("  MISSING  {what}\n           {fix}"));
    }

    /// Prints what a check of the host found, and counts it unless it is fine or accepted.
    pub(super) fn about_host(&mut self, name: &str, verdict: Verdict, is_accepted: bool) {
        let (kind, what, fix) = match verdict {
            Verdict::Fine(what) => return self.fine(&format!("{name}: {what}")),
            Verdict::Warning { what, .. } | Verdict::NotKnown { what, .. } if is_accepted => {
                return self.say(&format!("  accepted {name}: {what}"));
            }
            Verdict::Warning { what, fix } => ("warning ", what, fix),
            Verdict::NotKnown { what, fix } => ("unknown ", what, fix),
        };
        self.unaccepted += 1;
        self.say(&format!("  {kind} {name}: {what}\n           {fix}"));
    }

    /// Prints the last line, and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a line could not be printed.
    pub(super) fn conclude(mut self) -> anyhow::Result<ExitCode> {
        let what = match self.missing {
            0 => "everything is there".to_owned(),
            missing => format!("{missing} thing(s) missing"),
        };
        let besides = match self.warnings {
            0 => String::new(),
            warnings => format!(", {warnings} warning(s)"),
        };
        self.say(&format!("{what}{besides}"));
        if self.unaccepted > 0 {
            self.say(&format!(
                "{} thing(s) about the host to fix, or to accept with --accept NAME",
                self.unaccepted
            ));
        }
        let is_fine = self.missing + self.unaccepted == 0;
        match self.unprinted {
            Some(error) => Err(error),
            None if is_fine => Ok(ExitCode::SUCCESS),
            None => Ok(ExitCode::FAILURE),
        }
    }
}
