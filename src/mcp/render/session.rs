//! The answers of calls that use sessions.

use serde_json::{Value, json};

use super::Answer;
use crate::calls::served::Opened;
use crate::config::Config;
use crate::duration;
use crate::node::{LostHandle, Thing};
use crate::result::report::ReportStatus;
use crate::sessions::gone::Gone;
use crate::sessions::journal::Journal;

/// Most of a journal that is written for a model, in bytes.
const MAX_JOURNAL: usize = 8 * 1024;

/// The data of a session that was opened.
pub(super) fn opened(opened: &Opened, config: &Config) -> Value {
    let Opened { session, replayed, notes, .. } = opened;
    let limits = json!({
        "memory_mb": session.resources.memory.as_mib(),
        "cpus": session.resources.cpu.as_cores(),
        "max_timeout": duration::shown(config.limits.max_timeout),
        "idle_timeout": duration::shown(session.idle_timeout),
        "max_age": duration::shown(config.sessions.max_age),
    });
    let mut data = json!({
        "session": session.id,
        "language": session.language.name,
        "expires_at": session.expires_at(),
        "limits": limits,
    });
    if let Some(interpreter) = &session.session.opened().interpreter {
        data["interpreter"] = json!(interpreter);
    }
    if let Some(replayed) = replayed {
        data["replayed"] = json!(replayed);
    }
    if let Some(bound) = session.bound() {
        data["packages"] = json!(bound.asked);
    }
    if !notes.is_empty() {
        data["notes"] = json!(notes);
    }
    data
}

/// The answer when a session is gone: why, and what it had run.
pub(super) fn gone(gone: &Gone) -> Answer {
    let Gone { id, language, why, journal, .. } = gone;
    let why = why.to_string();
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
    Answer::failure(text, ReportStatus::SessionGone.as_str()).with_data(json!({
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
    }))
}

/// The answer when a session or run is on another node, or was on this one before it was started again. `can_replay` says whether
/// all nodes have its journal.
pub(super) fn lost(lost: &LostHandle, can_replay: bool) -> Answer {
    let thing = lost.thing().word();
    let way_back = match lost.thing() {
        Thing::Run => "Run the program again.".to_owned(),
        _ if can_replay => format!(
            "To go on from where it was, call open_session with its language and replay {:?}: what it ran is run again. Or open a \
             new one.",
            lost.handle()
        ),
        _ => "Open another one with open_session, and run in it what you need.".to_owned(),
    };
    let why = lost.to_string();
    let text = format!("The {thing} is gone: {why}.\n\n{way_back}");
    let status = ReportStatus::SessionGone;
    Answer::failure(text, status.as_str()).with_data(json!({
        "status": status,
        "message": format!("the {thing} is gone: {why}"),
        "reason": why,
        thing: lost.handle(),
        "node": lost.node(),
        "stdout": "",
        "stderr": "",
        "cpu_ms": 0.0,
    }))
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
