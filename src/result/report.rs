//! The report of a run for its caller: a text, and the same as data.

use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::limits::LimitKind;
use isolator_pool::run::outcome::{Captured, End, Outcome, Status};
use schemars::JsonSchema;
use serde::Serialize;

use crate::duration;
use crate::policy::{Findings, Violation};
use crate::request::arguments::InvalidArgument;
use crate::result::context::Context;
use crate::result::explain;
use crate::result::files;
use crate::result::returned::FileReport;
use crate::result::shown::{self, ShownReport};
use crate::result::so_far::SoFar;
use crate::result::units::{ms, text};

/// The result of `execute_code`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// Nothing has run after refused or invalid_arguments. After session_gone the call may have run.
    pub status: ReportStatus,
    /// Exit code, unless a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it failed and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The wrong argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Violations of the operator's rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Other remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Bytes that are missing in stdout.
    #[serde(skip_serializing_if = "is_zero")]
    pub stdout_missing_bytes: u64,
    /// Bytes that are missing in stderr.
    #[serde(skip_serializing_if = "is_zero")]
    pub stderr_missing_bytes: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: f64,
    /// Highest memory use, with files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Where all of stdout can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_uri: Option<String>,
    /// Where all of stderr can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_uri: Option<String>,
    /// Files created or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileReport>,
    /// Number of the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
    /// Value of the cell's last expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Figures and other values that the cell displayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<ShownReport>,
    /// Whether the cell was undone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undone: bool,
    /// Output of processes of earlier cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background_output: Option<String>,
    /// When the session ends if unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// For get_result, while it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
}

/// The status of a call. A comment on one of these would turn the list of their names in the schema into a choice between
/// schemas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum ReportStatus {
    #[default]
    Success,
    Error,
    Timeout,
    OutOfMemory,
    Killed,
    OutputLimit,
    Refused,
    Running,
    InvalidArguments,
    SessionGone,
}

impl From<Status> for ReportStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Success => Self::Success,
            Status::Error => Self::Error,
            Status::Timeout => Self::Timeout,
            Status::OutOfMemory => Self::OutOfMemory,
            Status::Killed => Self::Killed,
            Status::OutputLimit => Self::OutputLimit,
        }
    }
}

impl ReportStatus {
    /// The name that callers see.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Success => Status::Success.as_str(),
            Self::Error => Status::Error.as_str(),
            Self::Timeout => Status::Timeout.as_str(),
            Self::OutOfMemory => Status::OutOfMemory.as_str(),
            Self::Killed => Status::Killed.as_str(),
            Self::OutputLimit => Status::OutputLimit.as_str(),
            Self::Refused => "refused",
            Self::Running => "running",
            Self::InvalidArguments => "invalid_arguments",
            Self::SessionGone => "session_gone",
        }
    }
}

impl Report {
    /// Describes a run.
    pub(crate) fn new(outcome: &Outcome, unenforced: &[LimitKind], context: &Context<'_>) -> Self {
        let (exit_code, signal) = match outcome.end {
            Some(End::Code(code)) => (Some(code), None),
            Some(End::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Self {
            exit_code,
            signal,
            message: explain::cause(outcome, context),
            notes: explain::notes(outcome, unenforced, context),
            stdout: text(&outcome.stdout.to_bytes()),
            stderr: text(&outcome.stderr.to_bytes()),
            stdout_missing_bytes: outcome.stdout.dropped,
            stderr_missing_bytes: outcome.stderr.dropped,
            cpu_ms: ms(outcome.cpu),
            peak_memory_bytes: outcome.peak_memory,
            ..Self::of(outcome.status.into())
        }
    }

    /// Describes a program that did not run, because a policy forbids what was found in it.
    pub(crate) fn refused(found: Findings) -> Self {
        let message = format!(
            "the operator of this server forbids something in the program, so it was not run; do it \
             another way:\n{found}"
        );
        Self { violations: found.listed, ..Self::without_run(ReportStatus::Refused, message) }
    }

    /// Describes a detached program that was ended, with its output so far.
    pub(crate) fn ended_without_result(so_far: &SoFar, limits: OutputLimits) -> Self {
        let message = "the program was ended before it had a result; its sandbox is gone, or it was a cell of a session, which \
                       goes on without it";
        let most = limits.head + limits.tail;
        let output = so_far.all().map(|stream| stream.shortened(0, most));
        Self::without_run(ReportStatus::Killed, message.to_owned()).with_output(output)
    }

    /// Describes a detached program with its output so far. Its caller fetches the result later.
    pub(crate) fn running(handle: String, kept_for: Duration, so_far: &SoFar) -> Self {
        let kept_for = duration::shown(kept_for);
        let state = match so_far.step() {
            Some(step) => format!(
                "the program has not started, because its packages are not there yet ({step})"
            ),
            None => "the program goes on".to_owned(),
        };
        let message = format!(
            "{state}; call get_result with handle {handle:?} to wait for its result, which is kept \
             for {kept_for} after its end, or with cancel too to end it"
        );
        let report =
            Self { handle: Some(handle), ..Self::without_run(ReportStatus::Running, message) };
        report.with_output(so_far.ends())
    }

    fn with_output(self, [stdout, stderr]: [Captured; 2]) -> Self {
        Self {
            stdout: text(&stdout.to_bytes()),
            stderr: text(&stderr.to_bytes()),
            stdout_missing_bytes: stdout.dropped,
            stderr_missing_bytes: stderr.dropped,
            ..self
        }
    }

    /// Describes arguments that can't be used.
    pub(crate) fn invalid(error: &InvalidArgument) -> Self {
        let field = Some(error.field.clone());
        Self { field, ..Self::without_run(ReportStatus::InvalidArguments, error.message.clone()) }
    }

    fn without_run(status: ReportStatus, message: String) -> Self {
        Self { message: Some(message), ..Self::of(status) }
    }

    /// A status with nothing else.
    fn of(status: ReportStatus) -> Self {
        Self { status, ..Self::default() }
    }

    /// Bytes of its data, about.
    pub(crate) fn weight(&self) -> usize {
        const OF_FILE: usize = 300;
        let texts = [&self.message, &self.result, &self.background_output].into_iter().flatten();
        let texts = texts.chain([&self.stdout, &self.stderr]).chain(&self.notes).map(String::len);
        let shown = self.shown.iter().map(ShownReport::weight);
        texts.chain(shown).sum::<usize>() + (self.files.len() + self.violations.len()) * OF_FILE
    }

    /// Whether the program failed.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self.status, ReportStatus::Success | ReportStatus::Running)
    }

    /// Whether the program succeeded and left nothing that could be read.
    pub(crate) fn is_silent(&self) -> bool {
        let is_empty = self.stdout.is_empty() && self.stderr.is_empty() && self.files.is_empty();
        self.status == ReportStatus::Success && is_empty
    }

    /// The text for the model. The form of its beginning must not change, because callers parse it.
    pub(crate) fn to_text(&self) -> String {
        let message = self.message.as_deref().unwrap_or_default();
        if let Some(field) = &self.field {
            return format!("Invalid arguments: {field}: {message}");
        }
        let mut text = match self.status {
            ReportStatus::Success => String::new(),
            ReportStatus::Running => format!("Still Running: {message}"),
            failed => format!("Execution Failed ({}): {message}", failed.as_str()),
        };
        let has_output = !self.stdout.is_empty() || !self.stderr.is_empty();
        if self.status != ReportStatus::Running || has_output {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str("--- stdout ---\n");
            text.push_str(&self.stdout);
            text.push_str("\n--- stderr ---\n");
            text.push_str(&self.stderr);
        }
        for section in self.more_sections() {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push('\n');
            text.push_str(&section);
        }
        text
    }

    /// Other sections for the model: the files, where more can be read, and the notes.
    fn more_sections(&self) -> impl Iterator<Item = String> {
        let shown = shown::as_text(&self.shown).into_iter();
        let background =
            self.background_output.iter().map(|text| format!("--- background output ---\n{text}"));
        let files = (!self.files.is_empty()).then(|| files::as_text(&self.files));
        let uris = [("stdout", &self.stdout_uri), ("stderr", &self.stderr_uri)];
        let uris = uris.into_iter().filter_map(|(stream, uri)| {
            uri.as_ref().map(|uri| format!("all of {stream} can be read at {uri}"))
        });
        let notes: Vec<_> = uris.chain(self.notes.iter().cloned()).collect();
        let notes = (!notes.is_empty()).then(|| format!("--- notes ---\n{}", notes.join("\n")));
        shown.chain(background).chain(files).chain(notes).collect::<Vec<_>>().into_iter()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use isolator_pool::run::output::Stream;
    use schemars::generate::SchemaSettings;

    use super::*;

    fn schema() -> serde_json::Value {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        settings.into_generator().into_root_schema_for::<Report>().to_value()
    }

    fn report(status: Status) -> Report {
        Report {
            exit_code: Some(0),
            message: (status != Status::Success).then(|| "exit code 3".to_owned()),
            stdout: "out\n".to_owned(),
            stderr: "err".to_owned(),
            cpu_ms: 1.0,
            ..Report::of(status.into())
        }
    }

    #[test]
    fn the_text_has_its_promised_form_to_the_byte() {
        assert_eq!(report(Status::Success).to_text(), "--- stdout ---\nout\n\n--- stderr ---\nerr");
        assert_eq!(
            report(Status::Error).to_text(),
            "Execution Failed (error): exit code 3\n\n--- stdout ---\nout\n\n--- stderr ---\nerr"
        );
        let more = Report {
            stdout_uri: Some("isolator://runs/1/stdout".to_owned()),
            notes: vec!["a note".to_owned()],
            ..report(Status::Success)
        };
        assert_eq!(
            more.to_text(),
            "--- stdout ---\nout\n\n--- stderr ---\nerr\n\n--- notes ---\nall of stdout can be read at \
             isolator://runs/1/stdout\na note"
        );
    }

    #[test]
    fn a_running_program_is_reported_with_the_end_of_its_output() {
        let so_far = SoFar::default();
        let running =
            |so_far: &SoFar| Report::running("h".to_owned(), Duration::from_secs(1), so_far);
        assert!(!running(&so_far).to_text().contains("---"), "nothing was printed");
        so_far.add(Stream::Stdout, &[b'x'; 3000]);
        so_far.add(Stream::Stdout, b"end");
        let report = running(&so_far);
        assert!(report.stdout.ends_with("xend"), "{}", report.stdout);
        assert!(report.stdout.contains("955 bytes are missing"), "{}", report.stdout);
        assert_eq!(report.stdout_missing_bytes, 955);
        assert!(report.to_text().ends_with("xend\n--- stderr ---\n"));
    }

    #[test]
    fn the_schema_requires_only_fields_that_are_always_there() {
        let value = serde_json::to_value(report(Status::Success)).unwrap();
        for name in schema()["required"].as_array().unwrap() {
            assert!(value.get(name.as_str().unwrap()).is_some(), "{name}");
        }
    }

    #[test]
    fn a_refusal_has_the_required_fields_of_a_report() {
        let violation = Violation {
            file: "main.py".to_owned(),
            rule: "no-os".to_owned(),
            line: 1,
            column: 8,
            message: "importing os is not allowed".to_owned(),
        };
        let refused = Report::refused(Findings { listed: vec![violation], more: 0 });
        let text = refused.to_text();
        assert!(text.starts_with("Execution Failed (refused): "), "{text}");
        let end = "\nmain.py:1:8: importing os is not allowed (no-os)\n\n--- stdout ---\n\n--- stderr ---\n";
        assert!(text.ends_with(end), "{text}");
        let value = serde_json::to_value(refused).unwrap();
        for name in schema()["required"].as_array().unwrap() {
            assert!(value.get(name.as_str().unwrap()).is_some(), "{name}");
        }
    }

    #[test]
    fn the_schema_the_data_and_the_text_have_the_same_names_for_every_status() {
        let schema = schema();
        let statuses = [
            ReportStatus::Success,
            ReportStatus::Error,
            ReportStatus::Timeout,
            ReportStatus::OutOfMemory,
            ReportStatus::Killed,
            ReportStatus::OutputLimit,
            ReportStatus::Refused,
            ReportStatus::Running,
            ReportStatus::InvalidArguments,
            ReportStatus::SessionGone,
        ];
        let names = statuses.map(ReportStatus::as_str);
        assert_eq!(schema["properties"]["status"]["enum"], serde_json::json!(names));
        assert_eq!(serde_json::json!(statuses), serde_json::json!(names));
    }
}
