//! The results of calls.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::limits::{LimitKind, Resources};
use isolator_pool::pool::session::{CellEnd, CellOutcome};
use isolator_pool::run::outcome::Outcome;
use serde::Serialize;

use crate::config::{Config, Language};
use crate::packages::Packages;
use crate::request::syntax::Syntax;
use crate::request::understand::Advice;
use crate::request::wanted_files::OutputFiles;
use crate::result::context::{Caller, Context, PackagesAdvice};
use crate::result::receipt::ReceiptReport;
use crate::sessions::InUse;

/// The result of a call that was served.
pub(crate) enum Served {
    /// A program, cell or command has run. It may have failed.
    Ran(Box<Ran>),
    /// The syntax of a program was checked, and nothing has run.
    Checked(Syntax),
    /// A session was opened.
    Opened(Box<Opened>),
    /// Cells were undone.
    Rewound {
        undone: u32,
        /// How many more can be.
        left: u32,
        /// What is not as it was before.
        notes: Vec<String>,
        /// When the session ends if it is not used.
        expires_at: String,
    },
    /// Whether something was running and was interrupted.
    Interrupted(bool),
    /// Whether the session was open and was closed.
    Closed(bool),
}

/// A run: its outcome, its receipt, and what explains them.
pub(crate) struct Ran {
    pub end: RunEnd,
    pub receipt: ReceiptReport,
    pub notes: Vec<String>,
    /// The files that should come back.
    pub wanted: OutputFiles,
    /// The limits that did not hold, because the engine can't enforce them.
    pub unenforced: Vec<LimitKind>,
    /// The language of the program.
    pub language: Arc<Language>,
    pub timeout: Duration,
    pub resources: Resources,
    /// An explanation if the language's own tools can't read the program.
    pub advice: Option<Advice>,
    /// The names of the files that came with it.
    pub sent: Vec<String>,
    /// The packages that were asked for.
    pub packages: Vec<String>,
}

/// The outcome of a run, by where it ran.
pub(crate) enum RunEnd {
    /// In a new sandbox.
    Program(Box<Outcome>),
    /// In a session, as a cell or a shell command.
    Step {
        /// The outcome, with what it means for the session.
        cell: Box<CellOutcome>,
        /// Whether it was a shell command.
        is_command: bool,
        session: InUse,
    },
}

/// A session that was opened.
pub(crate) struct Opened {
    /// The session. It does not expire while this is held.
    pub session: InUse,
    pub receipt: ReceiptReport,
    /// The steps that were run again, if it repeats another session.
    pub replayed: Option<Replayed>,
    pub notes: Vec<String>,
}

/// The steps of another session that were run again in a new one.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Replayed {
    pub steps: u32,
    /// Steps that failed this time, with the beginning of what they printed.
    pub failed: Vec<String>,
    /// Steps that are not remembered anymore.
    pub forgotten: u32,
    /// Steps that were not run, because the call would have taken too long.
    pub not_run: u32,
}

impl Served {
    /// The status for the audit log and traces.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Ran(ran) => ran.outcome().status.as_str(),
            _ => "success",
        }
    }
}

impl Ran {
    /// The outcome of the program.
    pub(crate) fn outcome(&self) -> &Outcome {
        match &self.end {
            RunEnd::Program(outcome) => outcome,
            RunEnd::Step { cell, .. } => &cell.outcome,
        }
    }

    /// The outcome of the program, to take its parts.
    pub(crate) fn outcome_mut(&mut self) -> &mut Outcome {
        match &mut self.end {
            RunEnd::Program(outcome) => outcome,
            RunEnd::Step { cell, .. } => &mut cell.outcome,
        }
    }

    /// Whether it has begun. An interpreter that an earlier cell has ended or keeps busy does not take a cell.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(&self.end, RunEnd::Step { cell, .. } if cell.end == Some(CellEnd::NotBegun))
    }

    /// The kind of caller, if a tool ran it.
    pub(crate) const fn caller(&self) -> Caller {
        match &self.end {
            RunEnd::Program(_) => Caller::Call,
            RunEnd::Step { is_command: false, .. } => Caller::Cell,
            RunEnd::Step { is_command: true, .. } => Caller::ShellCommand,
        }
    }

    /// The facts that explain the outcome to a caller. `packages` are those that it could have had.
    pub(crate) fn context<'a>(
        &'a self,
        config: &'a Config,
        caller: Caller,
        packages: Option<&'a Packages>,
    ) -> Context<'a> {
        let asked = &self.packages;
        Context {
            config,
            language: &self.language,
            timeout: self.timeout,
            resources: self.resources,
            advice: self.advice.as_ref(),
            caller,
            sent: &self.sent,
            packages: packages.map(|packages| PackagesAdvice { packages, asked }),
        }
    }
}
