//! An answer to a call, checked for everything that every answer must have.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

/// The result of a call that reached a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The cause and the output.
    pub(crate) text: String,
    /// The text after them: files, resources to read, and notes.
    pub(crate) more_text: String,
    /// The other blocks of the answer.
    pub(crate) more: Vec<ContentBlock>,
    pub(crate) is_error: bool,
    pub(crate) data: Value,
    /// How the request was served, if it was.
    pub(crate) receipt: Value,
}

/// The streams of a program that printed nothing.
const NOTHING: &str = "--- stdout ---\n\n--- stderr ---\n";

impl Answer {
    /// Checks a result against the advertised schema and against itself.
    pub(crate) fn new(result: CallToolResult, schema: &Value) -> Self {
        let (first, more) = result.content.split_first().expect("a text");
        let (text, more) = (first.as_text().expect("a text").text.clone(), more.to_vec());
        let is_error = result.is_error.expect("isError is always said");
        let data = result.structured_content.unwrap_or_else(|| panic!("no data beside {text:?}"));
        conform(&data, schema, "structuredContent");
        let receipt = result.meta.and_then(|meta| meta.get("isolator/receipt").cloned());
        let receipt = receipt.unwrap_or_default();
        let mut answer = Self { text, more_text: String::new(), more, is_error, data, receipt };
        let promised = answer.promised_text();
        assert!(answer.text.starts_with(&promised), "{:?} is not {promised:?}", answer.text);
        answer.more_text = answer.text.split_off(promised.len()).trim_start().to_owned();
        let is_failure = !matches!(answer.status(), "success" | "running");
        assert_eq!(answer.is_error, is_failure, "{:?}", answer.data);
        answer
    }

    fn promised_text(&self) -> String {
        let streams =
            format!("--- stdout ---\n{}\n--- stderr ---\n{}", self.stdout(), self.stderr());
        match self.status() {
            "success" => streams,
            "running" if streams == NOTHING => format!("Still Running: {}", self.message()),
            "running" => format!("Still Running: {}\n\n{streams}", self.message()),
            status => format!("Execution Failed ({status}): {}\n\n{streams}", self.message()),
        }
    }

    fn string(&self, field: &str) -> &str {
        self.data[field].as_str().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> &str {
        self.string("status")
    }

    pub(crate) fn stdout(&self) -> &str {
        self.string("stdout")
    }

    pub(crate) fn stderr(&self) -> &str {
        self.string("stderr")
    }

    /// The cause of a failure.
    pub(crate) fn message(&self) -> &str {
        self.string("message")
    }

    /// Standard output of a program that succeeded.
    pub(crate) fn output(&self) -> &str {
        assert_eq!(self.status(), "success", "{}", self.text);
        self.stdout()
    }

    /// Standard output of a program that succeeded, read as JSON.
    pub(crate) fn json(&self) -> Value {
        let output = self.output();
        serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// A file that the program left.
    pub(crate) fn file(&self, path: &str) -> &Value {
        let files = self.data["files"].as_array().into_iter().flatten();
        let mut found = files.filter(|file| file["path"] == path);
        found.next().unwrap_or_else(|| panic!("no {path:?} in {:?}", self.data["files"]))
    }

    /// How the request got its sandbox.
    pub(crate) fn start(&self) -> &str {
        self.receipt["start"].as_str().unwrap_or_default()
    }

    /// Whether it came from a sandbox that waited.
    pub(crate) fn is_hit(&self) -> bool {
        matches!(self.start(), "hot" | "warm")
    }

    pub(crate) fn is_preloaded(&self) -> bool {
        self.receipt["preloaded"].as_bool().expect("a receipt")
    }

    /// Asserts a failure with this status whose message holds each of `hints`.
    pub(crate) fn assert_failed(&self, status: &str, hints: &[&str]) {
        assert_eq!(self.status(), status, "{}", self.text);
        for hint in hints {
            assert!(self.message().contains(hint), "no {hint:?} in {:?}", self.message());
        }
    }
}

/// The one text of a result.
pub(crate) fn text_of(result: &CallToolResult) -> String {
    let [content] = result.content.as_slice() else {
        panic!("one text, not {:?}", result.content);
    };
    content.as_text().expect("a text").text.clone()
}

/// Asserts that `value` is as `schema` says, for the part of JSON Schema that the server uses. It
/// is stricter than the standard: a property that the schema does not name is wrong, except in objects of which it says
/// nothing, in the objects of lists, of which it names what is always there, and in answers to calls that were refused.
pub(crate) fn conform(value: &Value, schema: &Value, path: &str) {
    assert!(schema.get("$ref").is_none(), "{path}: clients differ in how they follow $ref");
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
        assert!(allowed.contains(value), "{path}: {value} is none of {allowed:?}");
    }
    match schema["type"].as_str().unwrap_or_else(|| panic!("{path} has no plain type: {schema}")) {
        "object" => {
            let object = value.as_object().unwrap_or_else(|| panic!("{path}: {value}"));
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().expect("a name");
                assert!(object.contains_key(name), "{path}.{name} is missing");
            }
            let is_open = path.ends_with("[]")
                || value["status"] == "invalid_arguments"
                || schema.get("properties").is_none();
            for (name, value) in object {
                let known = schema["properties"].get(name);
                if known.is_none() && is_open {
                    continue;
                }
                let known = known.unwrap_or_else(|| panic!("{path}.{name} is not in the schema"));
                conform(value, known, &format!("{path}.{name}"));
            }
        }
        "array" => {
            for item in value.as_array().unwrap_or_else(|| panic!("{path}: {value}")) {
                conform(item, &schema["items"], &format!("{path}[]"));
            }
        }
        "string" => assert!(value.is_string(), "{path}: {value}"),
        "integer" => assert!(value.is_i64() || value.is_u64(), "{path}: {value}"),
        "number" => assert!(value.is_number(), "{path}: {value}"),
        "boolean" => assert!(value.is_boolean(), "{path}: {value}"),
        other => panic!("{path}: the check does not know the type {other}"),
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64()) {
        assert!(number >= least, "{path}: {value} is less than {least}");
    }
}
