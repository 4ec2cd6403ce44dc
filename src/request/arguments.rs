//! The arguments of the tools, as a caller writes them.
//!
//! They are read strictly: a wrong type or an unknown name is an error that names the field.
//! [`crate::request::resolve`] decides what they mean. The doc comments of fields are descriptions for the model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Arguments of `check_syntax`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckSyntax {
    /// Language of the code.
    #[serde(default)]
    #[schemars(with = "String")]
    pub language: Option<String>,
    /// The complete source of the program.
    #[serde(default)]
    #[schemars(with = "String")]
    pub code: Option<String>,
}

/// Arguments of `test_code`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestCode {
    /// The complete source of the program.
    #[serde(default)]
    #[schemars(with = "String")]
    pub code: Option<String>,
    /// Longest run time in seconds; a string such as "500ms" or "5s" works, too.
    #[serde(default)]
    #[schemars(with = "f64")]
    pub timeout: Option<Time>,
    /// CPU time in whole seconds for each process of the program. One that uses more is killed, with
    /// exit code 152.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64", range(min = 1))]
    pub cpu_limit_sec: Option<u64>,
    /// Memory limit in MiB, instead of the language's usual one.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64", range(min = 16))]
    pub memory_limit_mb: Option<u64>,
}

/// A time as callers write it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a number of seconds, or a string such as \"5s\"")]
pub(crate) enum Time {
    /// In seconds.
    Seconds(f64),
    /// With its unit.
    Text(String),
}

/// Arguments of `execute_code`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    /// Language of entrypoint_code. Required unless snippet_name is given.
    #[serde(default)]
    #[schemars(with = "String")]
    pub language: Option<String>,
    /// The complete source of the program. Required unless snippet_name is given.
    #[serde(default)]
    #[schemars(with = "String")]
    pub entrypoint_code: Option<String>,
    /// File name of the program, relative to the working directory, instead of the language's
    /// usual one.
    #[serde(default)]
    #[schemars(with = "String")]
    pub entrypoint_filename: Option<String>,
    /// More files for the working directory: modules that the program imports, data that it reads.
    #[serde(default, deserialize_with = "null_is_default")]
    pub additional_files: Vec<AdditionalFile>,
    /// Name of a stored program to run instead of entrypoint_code.
    #[serde(default)]
    #[schemars(with = "String")]
    pub snippet_name: Option<String>,
    /// Patterns of files whose content should come back, relative to the working directory, such as "*.csv" or
    /// "out/**". Pictures need no pattern.
    #[serde(default, deserialize_with = "null_is_default")]
    pub output_files: Vec<String>,
    /// Command-line arguments of the program.
    #[serde(default, deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    /// Text for the program's standard input. Default: empty.
    #[serde(default)]
    #[schemars(with = "String")]
    pub stdin: Option<String>,
    /// Environment variables of the program.
    #[serde(default, deserialize_with = "null_is_default")]
    pub env: BTreeMap<String, String>,
    /// Longest run time as a duration with its unit, such as "500ms", "5s" or "2m".
    #[serde(default)]
    #[schemars(with = "String")]
    pub timeout: Option<String>,
    /// Memory limit in MiB, instead of the language's usual one.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64", range(min = 16))]
    pub memory_mb: Option<u64>,
    /// CPU limit in cores, instead of the language's usual one.
    #[serde(default)]
    #[schemars(with = "f64")]
    pub cpus: Option<f64>,
}

/// Arguments of `get_result`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetResult {
    /// The handle that execute_code returned.
    #[serde(default)]
    #[schemars(with = "String")]
    pub handle: Option<String>,
    /// Whether to end the program instead of waiting for it.
    #[serde(default, deserialize_with = "null_is_default")]
    pub cancel: bool,
}

/// A file that comes with the program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct AdditionalFile {
    /// Path relative to the working directory; folders in it are created.
    pub filename: String,
    /// The file's content.
    pub content: String,
    /// How content is written: "utf-8" as it is, "base64" for binary files.
    #[serde(default)]
    pub encoding: Encoding,
}

/// How a file's content is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) enum Encoding {
    /// As it is.
    #[default]
    #[serde(rename = "utf-8", alias = "utf8")]
    Utf8,
    /// In base64, for binary files.
    #[serde(rename = "base64")]
    Base64,
}

/// An argument that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub(crate) struct InvalidArgument {
    /// Path of the field, as `additional_files[2].filename`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl InvalidArgument {
    /// An argument that can't be used.
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Reads the arguments of a call.
///
/// # Errors
///
/// The first field that is wrong.
pub(crate) fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, InvalidArgument> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." { "arguments".to_owned() } else { shortened(field) };
        InvalidArgument::new(field, shortened(error.into_inner().to_string()))
    })
}

/// The text without its middle, if it is long: it may repeat what the caller wrote, and the advice is at the end.
fn shortened(text: String) -> String {
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
///
/// # Errors
///
/// When it is missing.
pub(crate) fn required(
    value: Option<String>,
    field: &str,
    what: &str,
) -> Result<String, InvalidArgument> {
    value.ok_or_else(|| InvalidArgument::new(field, format!("is required: {what}")))
}

impl Arguments {
    /// Reads the arguments of a call.
    ///
    /// # Errors
    ///
    /// The first field that is wrong.
    pub(crate) fn parse(arguments: Value) -> Result<Self, InvalidArgument> {
        parse(arguments)
    }

    /// Bytes of code, files and input.
    pub(crate) fn weight(&self) -> usize {
        let files = self.additional_files.iter().map(|file| file.content.len());
        let texts = [&self.entrypoint_code, &self.stdin].into_iter().flatten().map(String::len);
        files.chain(texts).sum()
    }
}

/// Takes `null`, which models write for what they leave out, as the default.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Takes 64.0 as well, because some callers write that for 64.
fn whole_number<'de, D>(deserializer: D) -> Result<Option<u64>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let whole = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n));
    number
        .as_u64()
        .or_else(|| whole.map(|n| n as u64))
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("{number} is not a positive whole number")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_type_is_named_with_its_place() {
        let arguments = json!({"additional_files": [{"filename": "a", "content": 5}]});
        let error = Arguments::parse(arguments).unwrap_err();
        assert_eq!(error.field, "additional_files[0].content");
        assert!(error.message.contains("expected a string"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_told_with_the_names_there_are() {
        let error = Arguments::parse(json!({"code": "1"})).unwrap_err();
        assert_eq!(error.field, "code");
        assert!(error.message.contains("entrypoint_code"), "{error}");
        let encoding =
            json!({"additional_files": [{"filename": "a", "content": "", "encoding": "hex"}]});
        let error = Arguments::parse(encoding).unwrap_err();
        assert_eq!(error.field, "additional_files[0].encoding");
        assert!(error.message.contains("base64"), "{error}");
    }

    #[test]
    fn what_is_long_is_not_repeated() {
        let long = "ü".repeat(1 << 20);
        for wrong in [json!({ "memory_mb": long }), json!({ long.as_str(): 1 })] {
            let error = Arguments::parse(wrong).unwrap_err();
            assert!(error.field.len() + error.message.len() < 1000, "{error}");
            assert!(error.message.contains("expected"), "{error}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let memory = |json| Arguments::parse(json!({ "memory_mb": json })).map(|a| a.memory_mb);
        assert_eq!(memory(json!(64.0)), Ok(Some(64)));
        assert_eq!(memory(json!(64)), Ok(Some(64)));
        assert_eq!(memory(json!(null)), Ok(None));
        for wrong in [json!(64.5), json!(-1), json!("64"), json!(1e30)] {
            assert_eq!(memory(wrong).unwrap_err().field, "memory_mb");
        }
    }

    #[test]
    fn null_is_what_is_left_out() {
        let arguments =
            json!({"language": null, "additional_files": null, "args": null, "env": null});
        assert_eq!(Arguments::parse(arguments), Ok(Arguments::default()));
    }
}
