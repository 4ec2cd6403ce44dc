//! Everything that a cell has printed and shown, in its order as far as it is known.

use isolator_pool::pool::session::{CellEnd, FOR_PROGRAMS, Occasion};
use isolator_pool::run::output::Stream;
use serde::Deserialize;

use crate::calls::command::{Bytes, FinishedStep, Form};
use crate::result::media::{EXCEPTION, NO_EXCEPTION};

/// An exception, or another end of a cell that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Exception {
    /// The name of its class.
    pub(super) name: String,
    /// Its text.
    pub(super) value: String,
    /// Its traceback, in lines.
    pub(super) traceback: String,
}

impl Exception {
    /// Text that a kernel prints for it when no program asks for its parts.
    fn printed(&self, end: Option<CellEnd>) -> String {
        let text = match end {
            // An exit with a number says nothing.
            Some(CellEnd::Exited)
                if self.value == "None" || self.value.trim().parse::<i64>().is_ok() =>
            {
                ""
            }
            Some(CellEnd::Exited) => &self.value,
            _ => &self.traceback,
        };
        match text.trim_end() {
            "" => String::new(),
            text => format!("{text}\n"),
        }
    }
}

/// A part of what a cell printed or showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Text on a stream.
    Printed(Stream, Vec<u8>),
    /// A thing; `is_result` for the value of the last expression.
    Shown { forms: Vec<Form>, is_result: bool },
}

/// The record of a cell.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Its number in the session, if it has run.
    pub(super) number: Option<u32>,
    /// Its output.
    pub(super) parts: Vec<Part>,
    /// Why it failed.
    pub(super) error: Option<Exception>,
}

impl Record {
    /// Adds text.
    pub(super) fn print(&mut self, stream: Stream, bytes: &[u8]) {
        match self.parts.last_mut() {
            _ if bytes.is_empty() => {}
            Some(Part::Printed(last, text)) if *last == stream => text.extend_from_slice(bytes),
            _ => self.parts.push(Part::Printed(stream, bytes.to_vec())),
        }
    }

    /// Notes the end of a cell and takes the forms that only programs read out of what it has shown. Returns the text that the kernel
    /// would have printed about its exception.
    pub(super) fn end(&mut self, step: &mut FinishedStep) -> String {
        self.number = Some(step.cell);
        let mut printed = String::new();
        for thing in &mut step.shown {
            let of_cell = thing.occasion != Occasion::Background;
            if let Some((_, Bytes(content))) =
                thing.forms.iter().find(|(kind, _)| kind == EXCEPTION)
                && of_cell
            {
                let exception: Exception = serde_json::from_slice(content).unwrap_or_default();
                printed = exception.printed(step.cell_end);
                self.error = Some(exception);
            }
            thing.forms.retain(|(kind, _)| !kind.starts_with(FOR_PROGRAMS));
            if of_cell && !thing.forms.is_empty() {
                let is_result = thing.occasion == Occasion::Result;
                self.parts.push(Part::Shown { forms: thing.forms.clone(), is_result });
            }
        }
        step.shown.retain(|thing| !thing.forms.is_empty());
        if step.cell_end == Some(CellEnd::Raised) && self.error.is_none() {
            printed = format!("{NO_EXCEPTION}\n");
            self.fail(&step.status, NO_EXCEPTION);
        } else if step.has_failed() && self.error.is_none() {
            let cause = step.cause.clone().unwrap_or_else(|| "its process ended".to_owned());
            self.fail(&step.status, &cause);
        }
        printed
    }

    /// Notes that a cell was not run, or has no end of its own.
    pub(super) fn fail(&mut self, status: &str, why: &str) {
        let traceback = format!("{status}: {why}");
        self.error = Some(Exception { name: status.to_owned(), value: why.to_owned(), traceback });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::command::Shown;

    fn shown(occasion: Occasion, forms: &[(&str, &str)]) -> Shown {
        let form = |(kind, content): &(&str, &str)| {
            ((*kind).to_owned(), Bytes(content.as_bytes().to_vec()))
        };
        Shown { occasion, forms: forms.iter().map(form).collect() }
    }

    #[test]
    fn an_exception_is_no_shown_thing_and_forms_for_programs_are_left_out() {
        let error = r#"{"name": "E", "value": "v", "traceback": "T\nE: v"}"#;
        let mut step = FinishedStep {
            cell: 4,
            status: "error".to_owned(),
            cell_end: Some(CellEnd::Raised),
            shown: vec![
                shown(
                    Occasion::Cell,
                    &[("text/plain", "1"), ("application/vnd.isolator.table", "{}")],
                ),
                shown(Occasion::Background, &[("text/plain", "2")]),
                shown(Occasion::Result, &[(EXCEPTION, error)]),
            ],
            ..FinishedStep::default()
        };
        let mut record = Record::default();
        record.print(Stream::Stdout, b"a");
        record.print(Stream::Stdout, b"b");
        record.print(Stream::Stderr, b"");
        assert_eq!(record.end(&mut step), "T\nE: v\n");
        assert_eq!((record.number, step.shown.len()), (Some(4), 2));
        let error = record.error.unwrap();
        assert_eq!((error.name.as_str(), error.value.as_str()), ("E", "v"));
        let [Part::Printed(Stream::Stdout, text), Part::Shown { forms, is_result: false }] =
            &record.parts[..]
        else {
            panic!("{:?}", record.parts)
        };
        assert_eq!((text.as_slice(), forms.len()), (&b"ab"[..], 1));
    }

    #[test]
    fn an_exit_prints_its_text_and_a_timeout_is_an_error_without_a_class() {
        let of = |value: &str| Exception { value: value.to_owned(), ..Exception::default() };
        assert_eq!(of("7").printed(Some(CellEnd::Exited)), "");
        assert_eq!(of("None").printed(Some(CellEnd::Exited)), "");
        assert_eq!(of("bye").printed(Some(CellEnd::Exited)), "bye\n");
        let mut step = FinishedStep {
            status: "timeout".to_owned(),
            code: 124,
            cause: Some("still running".to_owned()),
            ..FinishedStep::default()
        };
        let mut record = Record::default();
        assert_eq!(record.end(&mut step), "");
        let error = record.error.unwrap();
        assert_eq!((error.name.as_str(), error.value.as_str()), ("timeout", "still running"));
        let mut step = FinishedStep {
            status: "error".to_owned(),
            cell_end: Some(CellEnd::Raised),
            ..FinishedStep::default()
        };
        let mut record = Record::default();
        assert!(record.end(&mut step).contains("the exception is missing"));
        assert_eq!(record.error.unwrap().value, NO_EXCEPTION);
    }
}
