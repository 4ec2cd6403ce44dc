//! A cell as a line of JSON, for programs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::pool::session::{CellEnd, CellOutcome, NoCheckpoint, Occasion, ShownThing};
use isolator_pool::run::outcome::{End, Status};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::result::units::{ms, text};

/// The line of a cell. Names are those of the results of tools.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    cell: u32,
    /// success, error, timeout, out_of_memory, killed, output_limit, or refused by a policy.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    /// Remarks for the author of the cell.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [String],
    /// How the code ended: ended, raised, interrupted, exited or died.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "is_zero")]
    stdout_missing_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    stderr_missing_bytes: u64,
    /// The value of the last expression: media types and contents. What is no text is in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// What else the cell has shown, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shown: Vec<Value>,
    #[serde(skip_serializing_if = "is_zero")]
    shown_missing: u64,
    /// How many cells were undone.
    undone: u32,
    /// How many cells can be undone.
    checkpoints: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_checkpoint: Option<&'a str>,
    /// What processes and threads of earlier cells printed.
    #[serde(skip_serializing_if = "String::is_empty")]
    background: String,
    #[serde(skip_serializing_if = "is_zero")]
    background_missing_bytes: u64,
    /// What they have shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    background_shown: Vec<Value>,
    /// Whether the session goes on.
    is_alive: bool,
    ms: f64,
    cpu_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_bytes: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The line of a cell that has run.
///
/// # Errors
///
/// When it can't be written as JSON.
pub(super) fn line(
    cell: &CellOutcome,
    message: Option<&str>,
    notes: &[String],
) -> serde_json::Result<String> {
    let outcome = &cell.outcome;
    let (exit_code, signal) = match outcome.end {
        Some(End::Code(code)) => (Some(code), None),
        Some(End::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let on = |occasion| cell.shown.iter().filter(move |thing| thing.occasion == occasion);
    serde_json::to_string(&Line {
        cell: cell.cell,
        status: outcome.status.as_str(),
        exit_code,
        signal,
        message,
        notes,
        end: cell.end.map(end),
        stdout: text(&outcome.stdout.to_bytes()),
        stderr: text(&outcome.stderr.to_bytes()),
        stdout_missing_bytes: outcome.stdout.dropped,
        stderr_missing_bytes: outcome.stderr.dropped,
        result: on(Occasion::Result).next_back().map(forms),
        shown: on(Occasion::Cell).map(forms).collect(),
        shown_missing: cell.shown_dropped.into(),
        undone: cell.undone,
        checkpoints: cell.checkpoints,
        no_checkpoint: cell.no_checkpoint.map(NoCheckpoint::why),
        background: text(&cell.background),
        background_shown: on(Occasion::Background).map(forms).collect(),
        background_missing_bytes: cell.background_dropped,
        is_alive: cell.is_alive,
        ms: ms(outcome.wall),
        cpu_ms: ms(outcome.cpu),
        peak_memory_bytes: outcome.peak_memory,
    })
}

/// The line of a cell that has no outcome.
///
/// # Errors
///
/// When it can't be written as JSON.
pub(super) fn not_run(
    cell: u32,
    status: &str,
    message: &str,
    is_alive: bool,
) -> serde_json::Result<String> {
    serde_json::to_string(&serde_json::json!({
        "cell": cell,
        "status": status,
        "message": message,
        "is_alive": is_alive,
    }))
}

const fn end(end: CellEnd) -> &'static str {
    match end {
        CellEnd::Ended => "ended",
        CellEnd::Raised => "raised",
        CellEnd::Interrupted => "interrupted",
        CellEnd::Exited => "exited",
        CellEnd::Died => "died",
        CellEnd::NotBegun => "not_begun",
    }
}

fn forms(thing: &ShownThing) -> Value {
    let form = |(media_type, content): &(String, Vec<u8>)| {
        let content = match std::str::from_utf8(content) {
            Ok(text) if !media_type.starts_with("image/") || media_type.ends_with("+xml") => {
                text.to_owned()
            }
            _ => BASE64.encode(content),
        };
        (media_type.clone(), Value::String(content))
    };
    Value::Object(thing.forms.iter().map(form).collect::<Map<_, _>>())
}

/// Whether a cell has failed.
pub(super) fn has_failed(cell: &CellOutcome) -> bool {
    cell.outcome.status != Status::Success
}

#[cfg(test)]
mod tests {
    use isolator_pool::pool::session::CellTimes;
    use isolator_pool::run::outcome::Outcome;
    use serde_json::json;

    use super::*;

    fn shown(occasion: Occasion, forms: &[(&str, &[u8])]) -> ShownThing {
        let forms = forms.iter().map(|(kind, content)| ((*kind).to_owned(), content.to_vec()));
        ShownThing { occasion, forms: forms.collect() }
    }

    #[test]
    fn a_cell_is_one_line_with_its_result() {
        let mut outcome = Outcome::of(Status::Error);
        outcome.end = Some(End::Code(1));
        outcome.stdout.head = b"a\nb\xff".to_vec();
        let png = [0x89, b'P', 0xff];
        let cell = CellOutcome {
            cell: 3,
            outcome,
            end: Some(CellEnd::Raised),
            shown: vec![
                shown(Occasion::Background, &[("text/plain", b"0")]),
                shown(Occasion::Cell, &[("image/png", &png)]),
                shown(Occasion::Result, &[("text/plain", b"1")]),
            ],
            shown_dropped: 0,
            undone: 1,
            no_checkpoint: None,
            checkpoints: 2,
            background: Vec::new(),
            background_dropped: 0,
            is_alive: true,
            times: CellTimes::default(),
        };
        assert!(has_failed(&cell));
        let line = line(&cell, Some("why"), &["note".to_owned()]).unwrap();
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        let expected = json!({
            "cell": 3, "status": "error", "exit_code": 1, "message": "why", "notes": ["note"], "end": "raised",
            "stdout": "a\nb\u{fffd}", "stderr": "", "result": {"text/plain": "1"},
            "shown": [{"image/png": BASE64.encode(png)}], "undone": 1, "checkpoints": 2,
            "background_shown": [{"text/plain": "0"}], "is_alive": true, "ms": 0.0, "cpu_ms": 0.0,
        });
        assert_eq!(value, expected);
    }
}
