//! The arguments of the tools.
//!
//! They are read strictly: a wrong type or an unknown name is an error that names the field.
//! [`crate::request::understand`] brings what callers send into this form, and [`crate::request::resolve`] decides
//! their meaning. The doc comments of fields are descriptions for the model.

use std::collections::BTreeMap;

use isolator_pool::quote::quoted;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Arguments of `check_syntax`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckSyntax {
    /// Language of the code.
    pub language: Option<String>,
    /// The complete source of the program.
    pub code: Option<String>,
    /// As of execute_code.
    pub packages: Vec<String>,
}

/// Arguments of `test_code`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TestCode {
    /// The complete source of the program.
    pub code: Option<String>,
    /// The language of the tool. It is no argument of its own, but many callers send it.
    #[schemars(skip)]
    pub language: Option<String>,
    /// Longest run time in seconds; a string such as "500ms" or "5s" works, too.
    #[schemars(with = "f64")]
    pub timeout: Option<String>,
    /// CPU time in whole seconds for each process of the program. One that uses more is killed, with
    /// exit code 152. 0: no limit of its own.
    pub cpu_limit_sec: Option<u64>,
    /// Memory limit in MiB, at least 16.
    pub memory_limit_mb: Option<u64>,
    /// As of execute_code.
    pub packages: Vec<String>,
}

mod sessions;

pub(crate) use sessions::{CompleteText, OneSession, OpenSession, RewindSession, RunCommand};

/// Arguments of `execute_code`. Commands send them to servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Arguments {
    /// Handle from open_session: the code runs there as the next cell.
    pub session: Option<String>,
    /// Required unless session or snippet_name is given.
    pub language: Option<String>,
    /// The complete source of the program. Required unless snippet_name is given.
    pub entrypoint_code: Option<String>,
    /// File name of the program.
    pub entrypoint_filename: Option<String>,
    /// More files for the working directory, such as modules and data. Each has a filename (folders are created), content,
    /// encoding ("base64" for binary files) and append (adds to a file of the session).
    pub additional_files: Vec<AdditionalFile>,
    /// Name of a stored program to run instead of entrypoint_code.
    pub snippet_name: Option<String>,
    /// Patterns of files to return, such as "*.csv" or "out/**". Pictures need none.
    pub output_files: Vec<String>,
    /// Command-line arguments.
    pub args: Vec<String>,
    /// Text for standard input.
    pub stdin: Option<String>,
    /// Environment variables, each as NAME=value.
    #[schemars(with = "Vec<String>")]
    pub env: BTreeMap<String, String>,
    /// Longest run time, such as "500ms", "5s" or "2m".
    pub timeout: Option<String>,
    /// Memory limit in MiB, at least 16.
    pub memory_mb: Option<u64>,
    /// CPU limit in cores.
    pub cpus: Option<f64>,
    /// Sets of packages that it can import from.
    pub packages: Vec<String>,
}

/// Arguments of `get_result`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GetResult {
    /// The handle.
    pub handle: Option<String>,
    /// Ends the program instead of waiting for it.
    pub cancel: bool,
}

/// A file that comes with the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct AdditionalFile {
    /// Path in the working directory; folders in it are created.
    pub filename: String,
    /// The file's content.
    pub content: String,
    /// How content is written: "utf-8" as it is, "base64" for binary files.
    #[serde(default)]
    pub encoding: Encoding,
    /// In a session: whether content is added to the end of the file.
    #[serde(default)]
    pub append: bool,
}

/// How a file's content is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) enum Encoding {
    // Descriptions of these would turn the plain list of names in the schema into a choice between schemas.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// An argument that can't be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub(crate) struct InvalidArgument {
    /// Path of the field, as `additional_files[2].filename`.
    pub field: String,
    /// The mistake, and how to correct it.
    pub message: String,
}

impl InvalidArgument {
    /// An argument that can't be used.
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// A handle that leads to no session, and to no record of one.
    pub(crate) fn no_such_session(field: &str, handle: &str) -> Self {
        let shown: String = handle.chars().take(60).collect();
        let message = format!(
            "there is no session {}: it was never yours, it ended long ago, or the server was restarted; open a new one with \
             open_session",
            quoted(&shown)
        );
        Self::new(field, message)
    }

    /// A handle that leads to no detached run.
    pub(crate) fn no_such_run() -> Self {
        let message = "there is no run with this handle: it has expired, or the server was restarted; run the program \
                       again";
        Self::new("handle", message)
    }
}

/// Reads the arguments of a call.
pub(crate) fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, InvalidArgument> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." { "arguments".to_owned() } else { shortened(field) };
        InvalidArgument::new(field, shortened(error.into_inner().to_string()))
    })
}

/// The text without its middle, if it is long: it may repeat what the caller wrote, and the advice is at the end.
pub(super) fn shortened(text: String) -> String {
    const START: usize = 100;
    const END: usize = 300;
    if text.len() <= START + END {
        return text;
    }
    let start = text.floor_char_boundary(START);
    let end = text.ceil_char_boundary(text.len() - END);
    format!("{}…{}", &text[..start], &text[end..])
}

/// A required argument.
pub(crate) fn required(
    value: Option<String>,
    field: &str,
    what: &str,
) -> Result<String, InvalidArgument> {
    value.ok_or_else(|| InvalidArgument::new(field, format!("is required: {what}")))
}

impl Arguments {
    /// Bytes of code, files and input.
    pub(crate) fn weight(&self) -> usize {
        let files = self.additional_files.iter().map(|file| file.content.len());
        let texts = [&self.entrypoint_code, &self.stdin].into_iter().flatten().map(String::len);
        files.chain(texts).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_type_is_named_with_its_place() {
        let arguments = json!({"additional_files": [{"filename": "a", "content": 5}]});
        let error = parse::<Arguments>(arguments).unwrap_err();
        assert_eq!(error.field, "additional_files[0].content");
        assert!(error.message.contains("expected a string"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_reported_with_the_known_ones() {
        let error = parse::<Arguments>(json!({"code": "1"})).unwrap_err();
        assert_eq!(error.field, "code");
        assert!(error.message.contains("entrypoint_code"), "{error}");
        let encoding =
            json!({"additional_files": [{"filename": "a", "content": "", "encoding": "hex"}]});
        let error = parse::<Arguments>(encoding).unwrap_err();
        assert_eq!(error.field, "additional_files[0].encoding");
        assert!(error.message.contains("base64"), "{error}");
    }

    #[test]
    fn long_values_are_not_repeated() {
        let long = "ü".repeat(1 << 20);
        for wrong in [json!({ "memory_mb": long }), json!({ long.as_str(): 1 })] {
            let error = parse::<Arguments>(wrong).unwrap_err();
            assert!(error.field.len() + error.message.len() < 1000, "{error}");
            assert!(error.message.contains("expected"), "{error}");
        }
    }
}
