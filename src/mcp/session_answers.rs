//! The answers of calls that use sessions.

use isolator_pool::engine::limits::LimitKind;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{ExecuteError, OpenReceipt};
use isolator_pool::pool::session::{CellOutcome, SessionError};
use isolator_pool::quote::quoted;
use isolator_pool::run::outcome::Outcome;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::tool_result::{self, Kept, block, failure};
use crate::request::arguments::InvalidArgument;
use crate::request::wanted_files::Wanted;
use crate::result::cell::{self, Shown};
use crate::result::explain::Context;
use crate::result::kept::Results;
use crate::result::receipt::UsedPackages;
use crate::result::report::{Report, ReportStatus, ms};
use crate::sessions::gone::Gone;
use crate::sessions::journal::Journal;
use crate::sessions::{InUse, NoSession, OpenFailure, OpenSession};

/// Most of a journal that is written for a model, in bytes.
const MAX_JOURNAL: usize = 8 * 1024;

/// The answer to a cell.
pub(super) async fn of_cell(
    mut cell: CellOutcome,
    session: &OpenSession,
    unenforced: &[LimitKind],
    context: &Context<'_>,
    wanted: &Wanted,
    notes: Vec<String>,
    keep: (&Results, &Client),
) -> CallToolResult {
    let status = cell.outcome.status;
    let mut outcome = std::mem::replace(&mut cell.outcome, Outcome::of(status));
    let describe = |outcome: &Outcome| Report::new(outcome, unenforced, context);
    let things = std::mem::take(&mut cell.shown);
    let shown = match tokio::task::spawn_blocking(move || cell::shown(things)).await {
        Ok(shown) => shown,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let Shown { reports, pictures, items, room } = shown;
    let not_shown: Vec<_> = items.keys().cloned().collect();
    let kept = Kept { room, items };
    let assembled =
        tool_result::assemble(&mut outcome, describe, wanted, notes, keep, kept, context.config);
    let (mut report, attachments, base) = assembled.await;
    if session.language.kernel == Some(Interpreter::Node)
        || context.config.sessions.checkpoints == 0
    {
        // There never is one, which is no news.
        cell.no_checkpoint = None;
    }
    cell::complete(&mut report, &cell, reports);
    report.notes.extend(cell::not_shown(&not_shown, base.as_deref()));
    report.expires_at = cell.is_alive.then(|| session.expires_at());
    let blocks: Vec<ContentBlock> = pictures.into_iter().map(block).chain(attachments).collect();
    let result = tool_result::of_report(&report, blocks);
    tool_result::with_receipt(result, &cell_receipt(session, &cell, &outcome))
}

/// How a cell was served.
fn cell_receipt(session: &OpenSession, cell: &CellOutcome, outcome: &Outcome) -> Value {
    let times = cell.times;
    json!({
        "start": "session",
        "image": session.session.image(),
        "frozen": times.was_frozen,
        "checkpoints": cell.checkpoints,
        "ms": {
            "queue": ms(times.queue),
            "unpack": ms(times.unpack),
            "begin": ms(times.begin),
            "program": ms(outcome.wall),
            "total": ms(times.queue + times.total),
        },
    })
}

/// How a session was opened.
pub(super) fn open_receipt(
    session: &OpenSession,
    receipt: &OpenReceipt,
    packages: Option<UsedPackages>,
) -> Value {
    let waited = packages.as_ref().map(|packages| packages.waited);
    let mut described = json!({
        "start": receipt.start.as_str(),
        "preloaded": session.session.opened().preloaded,
        "image": session.session.image(),
        "ms": {
            "queue": ms(receipt.queue),
            "checkout": ms(receipt.checkout),
            "open": ms(receipt.open),
            "total": ms(waited.unwrap_or_default() + receipt.queue + receipt.checkout + receipt.open),
        },
    });
    if let Some(packages) = packages {
        described["packages"] = json!(packages);
        described["ms"]["packages"] = json!(waited.map(ms));
    }
    described
}

/// The answer when there is no session.
pub(super) fn not_opened(error: &OpenFailure, when_busy: Option<&str>) -> CallToolResult {
    match error {
        OpenFailure::Open(error) if !matches!(error, ExecuteError::Session(_)) => {
            tool_result::sandbox_fault(error, when_busy)
        }
        OpenFailure::AllInUse(_) => {
            tracing::warn!(%error, "a session could not be opened");
            failure(format!(
                "Sandbox error: {error}\n\nNo session was opened. Close one, or try again later."
            ))
        }
        error => {
            tracing::warn!(%error, "a session could not be opened");
            failure(format!(
                "Sandbox error: the session could not be opened: {error}\n\nTry again. If it fails again, tell the operator to \
                 run `isolator doctor`."
            ))
        }
    }
}

/// The answer when a call of a session has no outcome.
pub(super) fn failed(error: &SessionError, session: &InUse) -> CallToolResult {
    match error {
        SessionError::Ended(reason) => {
            let journal = lock(&session.journal).clone();
            gone(&session.id, &session.language.name, &reason.to_string(), &journal)
        }
        SessionError::Admission(_) => {
            failure(format!("Sandbox error: {error}\n\nNothing was run. Try again in a moment."))
        }
        SessionError::Busy => failure(format!(
            "Sandbox error: {error}\n\nNothing was run. Wait for the answers to these calls before you send the next one: the calls \
             of a session run one after the other."
        )),
        SessionError::Files(_) => failure(format!(
            "Sandbox error: {error}\n\nNothing was run. Send less, or remove files from the working directory."
        )),
        SessionError::Command(_) | SessionError::TooLarge(_) => {
            failure(format!("Sandbox error: {error}\n\nNothing was run."))
        }
        SessionError::NoSuchFile(_) => failure(format!("Sandbox error: {error}")),
    }
}

/// The answer to a handle that leads to no session.
pub(super) fn none(handle: &str, none: &NoSession) -> CallToolResult {
    match none {
        NoSession::Unknown => {
            let error = InvalidArgument::new("session", unknown(handle));
            tool_result::of_report(&Report::invalid(&error), Vec::new())
        }
        NoSession::Gone(session) => {
            let Gone { id, language, why, journal, .. } = &**session;
            gone(id, language, &why.to_string(), journal)
        }
    }
}

/// What is wrong with a handle that nobody knows.
pub(super) fn unknown(handle: &str) -> String {
    let shown: String = handle.chars().take(60).collect();
    format!(
        "there is no session {}: it was never yours, it is gone for long, or the server was restarted; open a new one with \
         open_session",
        quoted(&shown)
    )
}

/// Why cells can't be rewound.
pub(super) fn no_such_checkpoint(session: &OpenSession, cells: u32, left: u32) -> String {
    if session.language.kernel != Some(Interpreter::Python) {
        return format!("sessions in {} can't be rewound", session.language.name);
    }
    match left {
        0 => "no cell can be rewound: there is no checkpoint".to_owned(),
        left => {
            let end = if cells == 1 { "" } else { "s" };
            format!("there is no checkpoint {cells} cell{end} back; the oldest one is {left} back")
        }
    }
}

/// The answer when a session is gone: why, and what it had run.
fn gone(id: &str, language: &str, why: &str, journal: &Journal) -> CallToolResult {
    let cells: Vec<_> = journal
        .entries()
        .map(|entry| {
            let mut step = json!({ "cell": entry.cell, "code": entry.text(), "state": entry.end });
            if entry.has_lost_files {
                step["lost_files"] = json!(true);
            }
            step
        })
        .collect();
    let mut text = format!(
        "The session is gone: {why}.\n\nTo go on from where it was, call open_session with language {language:?} and replay \
         {id:?}: what it ran is run again. Or open a new one."
    );
    text.push_str(&written(journal));
    let message = format!("the session is gone: {why}");
    let mut result = failure(text);
    result.structured_content = Some(json!({
        "status": ReportStatus::SessionGone,
        "message": message,
        "reason": why,
        "session": id,
        "language": language,
        "journal": cells,
        "forgotten_cells": journal.missing(),
        "stdout": "",
        "stderr": "",
        "cpu_ms": 0.0,
    }));
    result
}

/// A journal for a model: its end, if it is long.
fn written(journal: &Journal) -> String {
    let mut steps = Vec::new();
    let mut left = MAX_JOURNAL;
    for entry in journal.entries().rev() {
        let state = entry.end.remark();
        let names: Vec<_> = entry.files.iter().map(|file| file.name.as_str()).collect();
        let files = if entry.has_lost_files {
            " with files that are too large to be remembered".to_owned()
        } else if names.is_empty() {
            String::new()
        } else {
            format!(" with files: {}", names.join(", "))
        };
        let step = format!("\n[{}]{state}{files}\n{}", entry.cell, entry.text().trim_end());
        if step.len() > left {
            steps.push("\n[...]".to_owned());
            break;
        }
        left -= step.len();
        steps.push(step);
    }
    if steps.is_empty() {
        return String::new();
    }
    steps.reverse();
    format!("\n\n--- what it had run ---{}", steps.concat())
}
