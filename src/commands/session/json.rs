//! A cell as a line of JSON, for programs.

use isolator_pool::pool::session::{CellEnd, NoCheckpoint, Occasion};
use isolator_pool::run::outcome::{Captured, End};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::calls::command::{Bytes, FinishedStep, Form, Output, Shown};
use crate::result::cell;
use crate::result::media::written;
use crate::result::units::text;

/// The line of a cell. Names are those of the results of tools.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    cell: u32,
    /// success, error, timeout, out_of_memory, killed, output_limit, or refused by a policy.
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Remarks for the author of the cell.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [String],
    /// How the code ended: ended, raised, interrupted, exited or died.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<CellEnd>,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "is_zero")]
    stdout_missing_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    stderr_missing_bytes: u64,
    /// The value of the last expression: media types and contents. What is no text is in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// The other things that the cell has shown, in order.
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
    /// Output of processes and threads of earlier cells.
    #[serde(skip_serializing_if = "String::is_empty")]
    background: String,
    #[serde(skip_serializing_if = "is_zero")]
    background_missing_bytes: u64,
    /// The things that they have shown.
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
pub(super) fn line(step: &FinishedStep) -> serde_json::Result<String> {
    let (exit_code, signal) = match step.end {
        Some(End::Code(code)) => (Some(code), None),
        Some(End::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let on = |occasion| step.shown.iter().filter(move |thing| thing.occasion == occasion);
    let printed = |output: &Output| text(&Captured::from(output.clone()).into_bytes());
    serde_json::to_string(&Line {
        cell: step.cell,
        status: &step.status,
        exit_code,
        signal,
        message: cell::with_state(step.cause.clone(), step.undone_state.clone()),
        notes: &step.notes,
        end: step.cell_end,
        stdout: printed(&step.stdout),
        stderr: printed(&step.stderr),
        stdout_missing_bytes: step.stdout.dropped,
        stderr_missing_bytes: step.stderr.dropped,
        result: on(Occasion::Result).next_back().map(forms),
        shown: on(Occasion::Cell).map(forms).collect(),
        shown_missing: step.shown_dropped.into(),
        undone: step.undone,
        checkpoints: step.checkpoints,
        no_checkpoint: step.no_checkpoint.map(NoCheckpoint::why),
        background: text(&step.background),
        background_shown: on(Occasion::Background).map(forms).collect(),
        background_missing_bytes: step.background_dropped,
        is_alive: step.is_alive,
        ms: step.ms,
        cpu_ms: step.cpu_ms,
        peak_memory_bytes: step.peak_memory,
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

fn forms(thing: &Shown) -> Value {
    let form = |(media_type, Bytes(content)): &Form| {
        (media_type.clone(), Value::String(written(media_type, content)))
    };
    Value::Object(thing.forms.iter().map(form).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use serde_json::json;

    use super::*;

    fn shown(occasion: Occasion, kind: &str, content: &[u8]) -> Shown {
        Shown { occasion, forms: vec![(kind.to_owned(), Bytes(content.to_vec()))] }
    }

    #[test]
    fn a_cell_is_one_line_with_its_result() {
        let png = [0x89, b'P', 0xff];
        let step = FinishedStep {
            cell: 3,
            status: "error".to_owned(),
            end: Some(End::Code(1)),
            cell_end: Some(CellEnd::Raised),
            cause: Some("why".to_owned()),
            notes: vec!["note".to_owned()],
            stdout: Output { head: b"a\nb\xff".to_vec(), ..Output::default() },
            shown: vec![
                shown(Occasion::Background, "text/plain", b"0"),
                shown(Occasion::Cell, "image/png", &png),
                shown(Occasion::Result, "text/plain", b"1"),
            ],
            undone: 1,
            undone_state: Some("undone".to_owned()),
            checkpoints: 2,
            is_alive: true,
            ..FinishedStep::default()
        };
        let line = line(&step).unwrap();
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        let expected = json!({
            "cell": 3, "status": "error", "exit_code": 1, "message": "why; undone", "notes": ["note"], "end": "raised",
            "stdout": "a\nb\u{fffd}", "stderr": "", "result": {"text/plain": "1"},
            "shown": [{"image/png": BASE64.encode(png)}], "undone": 1, "checkpoints": 2,
            "background_shown": [{"text/plain": "0"}], "is_alive": true, "ms": 0.0, "cpu_ms": 0.0,
        });
        assert_eq!(value, expected);
    }
}
