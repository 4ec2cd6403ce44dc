//! Running the journal of a session again in a new one.

use std::collections::VecDeque;
use std::time::Duration;

use isolator_pool::pool::session::{CellOutcome, SessionError};
use isolator_pool::quote::said;
use isolator_pool::run::outcome::{End, Status};
use isolator_pool::run::output::Watch;
use serde::Serialize;
use tokio::time::Instant;

use crate::duration;
use crate::mcp::calls::{Answer, Calls};
use crate::mcp::session_answers;
use crate::request::in_session::{self, Cell};
use crate::sessions::InUse;
use crate::sessions::journal::{Entry, EntryEnd, Step};

/// What was run again in a new session.
#[derive(Debug, Default, Serialize)]
pub(super) struct Replayed {
    /// Steps that were run.
    pub(super) steps: u32,
    /// Steps that failed this time, with the beginning of what they printed.
    pub(super) failed: Vec<String>,
    /// Steps that are not remembered anymore.
    pub(super) forgotten: u32,
    /// Steps that were not run, because the call would have taken too long.
    pub(super) not_run: u32,
}

impl Calls {
    /// Runs the steps of a journal in a new session. The error is the answer to the call: the session has ended, or a step can't be
    /// run at all.
    pub(super) async fn replay(
        &self,
        session: &InUse,
        steps: VecDeque<Entry>,
        replayed: &mut Replayed,
        watch: Option<Watch>,
        notes: &mut Vec<String>,
    ) -> Result<(), Answer> {
        const MAX_TOLD: usize = 20;
        // Whoever waits longer for an answer is told by then.
        let until = Instant::now() + self.config.results.detach_after;
        let mut tell = |number: u32, failure: String| {
            if replayed.failed.len() < MAX_TOLD {
                replayed.failed.push(format!("cell {number}: {failure}"));
            }
        };
        for Entry { cell: number, step, files, has_lost_files, timeout, end } in steps {
            if end == EntryEnd::TimedOut {
                let timeout = duration::shown(timeout);
                tell(
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
            let cell = in_session::again(step, files, timeout, language, resources, &self.config);
            let cell = Cell { has_lost_files, ..cell.map_err(Err)? };
            let found = self
                .config
                .policies
                .check(&language.name, cell.unchecked.clone(), &session.client)
                .await;
            replayed.steps += 1;
            let failure = match found {
                Ok(found) if found.is_empty() => {
                    let ran = self.run_step(session, cell, watch.clone(), notes).await;
                    match ran {
                        Ok(outcome) => failure_of(&outcome, timeout),
                        Err(error @ SessionError::Ended(_)) => {
                            return Err(Ok(session_answers::failed(&error, session)));
                        }
                        Err(error) => Some(error.to_string()),
                    }
                }
                Ok(_) => Some("the operator forbids something in it".to_owned()),
                Err(error) => {
                    self.count_unchecked(&language.name, &error);
                    Some(error.to_string())
                }
            };
            let lost = "its files were too large to be remembered, and are missing".to_owned();
            let failure = failure.or_else(|| has_lost_files.then_some(lost));
            if let Some(failure) = failure {
                tell(number, failure);
            }
        }
        Ok(())
    }
}

/// What of a step is run again in a new session. Files stay when a cell is undone, so they come again without it. What has run longer
/// than it could would do so again, and what has ended its session would end the next one, too.
pub(super) fn to_run_again(entry: &Entry) -> Option<Entry> {
    let has_files = !entry.files.is_empty() || entry.has_lost_files;
    match entry.end {
        EntryEnd::Ran => Some(entry.clone()),
        EntryEnd::Undone | EntryEnd::SessionEnded if !has_files => None,
        EntryEnd::Undone | EntryEnd::SessionEnded | EntryEnd::TimedOut => {
            Some(Entry { step: Step::Files, ..entry.clone() })
        }
    }
}

/// What is said of a step that failed when it was run again, which could take so long.
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
