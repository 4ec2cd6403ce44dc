//! The end of a program with everything that a command shows of it. A server sends it to commands in this form.

use isolator_pool::run::outcome::{ChangedFile, End, Outcome, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::served::Ran;
use crate::config::Config;
use crate::packages::Packages;
use crate::result::context::{Caller, Context};
use crate::result::explain;
use crate::result::receipt::ReceiptReport;
use crate::result::report::Report;
use crate::result::returned::FileReport;

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
    /// How long to wait for packages that are being built. In a server it is `results.detachAfter` if it is not given; otherwise
    /// until they are there.
    pub max_wait_ms: Option<u64>,
}

/// The end of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The status for the audit log and metrics of a server.
    #[serde(skip)]
    pub status: &'static str,
    /// The receipt for the traces of a server.
    #[serde(skip)]
    pub receipt: Option<ReceiptReport>,
}

/// A file that a program left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedFile {
    /// Its path below the working directory, which the program chose.
    pub path: String,
    pub size: u64,
    /// Its content, if it was wanted and is not too large.
    pub content: Option<Content>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content(#[serde(with = "base64_text")] pub Vec<u8>);

impl Finished {
    /// Describes a run. `packages` are those that it could have had.
    pub(super) fn new(mut ran: Ran, config: &Config, packages: &Packages) -> Self {
        let context = ran.context(config, Caller::CommandLine, Some(packages));
        let outcome = ran.outcome();
        let mut report = Report::new(outcome, &ran.unenforced, &context);
        let status = outcome.status.as_str();
        let (code, cause) = (outcome.shell_code(), cause(outcome, &context));
        report.notes.splice(..0, ran.notes.iter().cloned());
        let of_file = |file: &ChangedFile| FileReport::named(file.path.clone(), file.size);
        report.files = outcome.files.iter().map(of_file).collect();
        let mut data = serde_json::to_value(&report).expect("plain data is JSON");
        data["receipt"] = serde_json::to_value(&ran.receipt).expect("plain data is JSON");
        let Outcome { stdout, stderr, files, .. } =
            std::mem::replace(ran.outcome_mut(), Outcome::of(Status::Success));
        let file = |ChangedFile { path, size, content }| FinishedFile {
            path,
            size,
            content: content.map(Content),
        };
        Self {
            code,
            cause,
            stdout: stdout.into_bytes(),
            stderr: stderr.into_bytes(),
            notes: report.notes,
            files: files.into_iter().map(file).collect(),
            data,
            status,
            receipt: Some(ran.receipt),
        }
    }

    /// Its bytes, about.
    pub(crate) fn weight(&self) -> usize {
        let contents = self.files.iter().filter_map(|file| file.content.as_ref());
        let contents: usize = contents.map(|Content(content)| content.len()).sum();
        (self.stdout.len() + self.stderr.len() + contents) * 4 / 3
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
