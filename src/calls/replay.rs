//! Running the journal of a session again in a new one.

use std::collections::VecDeque;
use std::time::Duration;

use isolator_pool::pool::session::{CellOutcome, SessionError};
use isolator_pool::quote::said;
use isolator_pool::run::outcome::{End, Status};
use isolator_pool::run::output::Watch;
use tokio::time::Instant;

use super::served::Replayed;
use super::{CallError, Calls};
use crate::duration;
use crate::request::resolve::{self, StepJob};
use crate::sessions::InUse;
use crate::sessions::journal::{EntryEnd, JournalEntry, Step};

impl Calls {
    /// Runs the steps of a journal in a new session.
    ///
    /// # Errors
    ///
    /// When the session has ended, or a step can't be run at all.
    pub(super) async fn replay(
        &self,
        session: &InUse,
        steps: VecDeque<JournalEntry>,
        replayed: &mut Replayed,
        watch: Option<Watch>,
        notes: &mut Vec<String>,
    ) -> Result<(), CallError> {
        const MAX_LISTED: usize = 20;
        // The call is answered by then, so the remaining steps are not run.
        let until = Instant::now() + self.config.results.detach_after;
        let mut report = |number: u32, failure: String| {
            if replayed.failed.len() < MAX_LISTED {
                replayed.failed.push(format!("cell {number}: {failure}"));
            }
        };
        for JournalEntry { cell: number, step, files, has_lost_files, timeout, end } in steps {
            if end == EntryEnd::TimedOut {
                let timeout = duration::shown(timeout);
                report(
                    number,
                    format!("not run again, because it was still running after {timeout}"),
                );
            }
            if matches!(step, Step::Files) && files.is_empty() && !has_lost_files {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                replayed.not_run += 1;
                continue;
            }
            let timeout = timeout.min(left);
            let (language, resources) = (&session.language, session.resources);
            let job = resolve::again(step, files, timeout, language, resources, &self.config)?;
            let mut job = StepJob { has_lost_files, ..job };
            let (policies, unchecked) = (&self.config.policies, std::mem::take(&mut job.unchecked));
            let checked = self
                .check_policies(
                    policies,
                    &language.name,
                    unchecked,
                    (&session.client, None),
                    &mut Vec::new(),
                )
                .await;
            replayed.steps += 1;
            let failure = match checked {
                Ok(()) => match self.run_step(session, job, watch.clone(), notes).await {
                    Ok(outcome) => failure_of(&outcome, timeout),
                    Err(error @ SessionError::Ended(_)) => {
                        return Err(CallError::of_session(error, session));
                    }
                    Err(error) => Some(error.to_string()),
                },
                Err(CallError::Forbidden { .. }) => {
                    Some("the operator forbids something in it".to_owned())
                }
                Err(error) => Some(error.to_string()),
            };
            let lost = "its files were too large to be remembered, and are missing".to_owned();
            let failure = failure.or_else(|| has_lost_files.then_some(lost));
            if let Some(failure) = failure {
                report(number, failure);
            }
        }
        Ok(())
    }
}

/// The part of a step that is run again in a new session. If files have stayed when a cell was undone, they come again without it. A step that ran longer than it could would do so again, and a step that ended its session would end the next one, too.
pub(super) fn to_run_again(entry: &JournalEntry) -> Option<JournalEntry> {
    let has_files = !entry.files.is_empty() || entry.has_lost_files;
    match entry.end {
        EntryEnd::Ran => Some(entry.clone()),
        EntryEnd::Undone | EntryEnd::SessionEnded if !has_files => None,
        EntryEnd::Undone | EntryEnd::SessionEnded | EntryEnd::TimedOut => {
            Some(JournalEntry { step: Step::Files, ..entry.clone() })
        }
    }
}

/// Describes a step that failed when it was run again, which could take up to `timeout`.
fn failure_of(outcome: &CellOutcome, timeout: Duration) -> Option<String> {
    let status = outcome.outcome.status;
    if status == Status::Success {
        return None;
    }
    let mut failure = status.as_str().to_owned();
    if status == Status::Timeout {
        failure.push_str(&format!(" after {}", duration::shown(timeout)));
    }
    let printed = outcome.outcome.stderr.to_bytes();
    let printed = String::from_utf8_lossy(&printed);
    match (printed.lines().rev().find(|line| !line.trim().is_empty()), outcome.outcome.end) {
        (Some(last), _) => failure.push_str(&format!(": {}", said(last))),
        (None, Some(End::Code(code))) if status == Status::Error => {
            failure.push_str(&format!(": exit code {code}"));
        }
        (None, _) => {}
    }
    Some(failure)
}
