//! The end of a program with everything that a command shows of it. A server sends it to commands in this form.

use isolator_pool::engine::limits::LimitKind;
use isolator_pool::run::outcome::{ChangedFile, End, Outcome, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::result::explain::{self, Context};
use crate::result::files::FileReport;
use crate::result::report::Report;

/// The key of a request's `_meta` with which a command asks for it, and of the answer's.
pub(crate) const FINISHED: &str = "isolator/finished";

/// The value of that key in a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Whether the files that the program leaves should come back.
    pub files: bool,
    /// Standard input of any bytes, instead of the argument.
    #[serde(with = "base64_text")]
    pub stdin: Vec<u8>,
}

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finished {
    /// The exit code of the command.
    pub code: i32,
    /// The status and the cause of a failure, unless the exit code alone says it.
    pub cause: Option<String>,
    /// Standard output.
    #[serde(with = "base64_text")]
    pub stdout: Vec<u8>,
    /// Standard error.
    #[serde(with = "base64_text")]
    pub stderr: Vec<u8>,
    /// Remarks for the author of the program.
    pub notes: Vec<String>,
    /// The files that it left.
    pub files: Vec<FinishedFile>,
    /// The same as data: the report of `execute_code`, and the receipt.
    pub data: Value,
}

/// A file that a program left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedFile {
    /// Its path below the working directory, which the program chose.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its content, if it was wanted and is not too large.
    pub content: Option<Content>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content(#[serde(with = "base64_text")] pub Vec<u8>);

impl Finished {
    /// Describes an outcome. `notes` come before its own.
    ///
    /// # Errors
    ///
    /// When it can't be written as JSON.
    pub(crate) fn new(
        mut outcome: Outcome,
        mut notes: Vec<String>,
        unenforced: &[LimitKind],
        receipt: &impl Serialize,
        context: &Context<'_>,
    ) -> serde_json::Result<Self> {
        let files = std::mem::take(&mut outcome.files);
        let mut report = Report::new(&outcome, unenforced, context);
        notes.append(&mut report.notes);
        report.notes.clone_from(&notes);
        let of_file = |file: &ChangedFile| FileReport::named(file.path.clone(), file.size);
        report.files = files.iter().map(of_file).collect();
        let mut data = serde_json::to_value(report)?;
        data["receipt"] = serde_json::to_value(receipt)?;
        let files = files.into_iter().map(|ChangedFile { path, size, content }| FinishedFile {
            path,
            size,
            content: content.map(Content),
        });
        Ok(Self {
            code: outcome.shell_code(),
            cause: cause(&outcome, context),
            stdout: outcome.stdout.into_bytes(),
            stderr: outcome.stderr.into_bytes(),
            notes,
            files: files.collect(),
            data,
        })
    }
}

/// The status and the cause of a failure, unless the exit code of the command alone says it.
fn cause(outcome: &Outcome, context: &Context<'_>) -> Option<String> {
    let cause = explain::cause(outcome, context)?;
    let is_plain_exit = matches!(outcome.end, Some(End::Code(code))
        if outcome.status == Status::Error && cause == format!("exit code {code}"));
    (!is_plain_exit).then(|| format!("{}: {cause}", outcome.status.as_str()))
}

/// Bytes in base64.
mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        BASE64.decode(String::deserialize(from)?).map_err(de::Error::custom)
    }
}
