//! The JSON bodies of requests, read into the types of their fields. Each API has its own form of an error, and all have the same words.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::request::arguments::InvalidArgument;
use crate::request::values::{count_values, with_short_texts};

/// The name of the whole body where a field is named.
const BODY: &str = "body";

/// Most keys and values of a body. Parsed, as many take 16 MiB.
pub(super) const MAX_VALUES: usize = 100_000;

/// Longest text of a client that is repeated, in bytes.
const MAX_REPEATED: usize = 500;

/// The fields of a request that has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoFields {}

/// Reads a body, which is one object in JSON.
///
/// # Errors
///
/// The first field that can't be used, or the place at which the body is no JSON.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, InvalidArgument> {
    // A list would be read as the fields in their order.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(InvalidArgument::new(BODY, "must be a JSON object"));
    }
    if count_values(body, MAX_VALUES) > MAX_VALUES {
        let message = format!("has more than {MAX_VALUES} keys and values: send data as texts");
        return Err(InvalidArgument::new(BODY, message));
    }
    if let Some(short) = with_short_texts(body) {
        read_json::<T>(&short)?;
    }
    read_json(body)
}

fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, InvalidArgument> {
    let json = &mut serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut *json).map_err(|error| {
        let path = error.path().to_string();
        let (field, message) = in_words(&path, error.inner());
        InvalidArgument::new(cut(&field), cut(&message))
    })?;
    let ended = json.end();
    ended.map_err(|_| InvalidArgument::new(BODY, "has something after its JSON object"))?;
    Ok(read)
}

/// The same; a body that is empty has no fields.
///
/// # Errors
///
/// As [`read`].
pub(super) fn read_or_empty<T: DeserializeOwned>(body: &[u8]) -> Result<T, InvalidArgument> {
    read(if body.is_empty() { b"{}" } else { body })
}

/// The field of an error, and what is wrong with it.
fn in_words(path: &str, error: &serde_json::Error) -> (String, String) {
    let field = if matches!(path, "." | "?") { BODY } else { path };
    if !error.is_data() {
        return (field.to_owned(), format!("is not JSON: {error}"));
    }
    let text = error.to_string();
    // The field is a better place than a line and a column.
    let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
    if let Some(name) = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'))
    {
        let field = if field == BODY { name.to_owned() } else { format!("{field}.{name}") };
        return (field, "is required".to_owned());
    }
    if let Some(others) = text.strip_prefix("unknown field `") {
        let known = others.rsplit_once("`, ").map_or("", |(_, known)| known);
        return (field.to_owned(), format!("is not a field of this request: {known}"));
    }
    let found =
        text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    let Some((found, expected)) = found.and_then(|found| found.rsplit_once(", expected ")) else {
        return (field.to_owned(), text.to_owned());
    };
    (
        field.to_owned(),
        format!("must be {}, and is {}", type_in_words(expected), value_in_words(found)),
    )
}

/// A type as people know it.
fn type_in_words(expected: &str) -> &str {
    match expected {
        "f64" => "a number",
        "i64" => "a whole number",
        "u64" => "a whole number that is not negative",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}

/// A value as people know it.
fn value_in_words(found: &str) -> String {
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        found => {
            let text = found.strip_prefix("string ").map(|text| format!("the text {text}"));
            // A number or true or false comes after its type, in backquotes.
            let number = || Some(found.split_once('`')?.1.strip_suffix('`')?.to_owned());
            text.or_else(number).unwrap_or_else(|| found.to_owned())
        }
    }
}

/// A text that may repeat what a client has sent, without its end if it is long.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_REPEATED)].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only reading them is tested")]
    struct Fields {
        seconds: f64,
        whole: Option<i64>,
        size: Option<u64>,
        text: Option<String>,
        is_on: Option<bool>,
        all: Option<Vec<Inner>>,
        names: Option<BTreeMap<String, String>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only reading it is tested")]
    struct Inner {
        content: String,
    }

    #[test]
    fn each_mistake_is_named_with_its_field_and_in_plain_words() {
        for (body, said) in [
            (r#"{"seconds": "10"}"#, r#"seconds: must be a number, and is the text "10""#),
            (r#"{"seconds": 1, "whole": 1.5}"#, "whole: must be a whole number, and is 1.5"),
            (
                r#"{"seconds": 1, "size": -1}"#,
                "size: must be a whole number that is not negative, and is -1",
            ),
            (r#"{"seconds": 1, "text": []}"#, "text: must be a text, and is a list"),
            (r#"{"seconds": null}"#, "seconds: must be a number, and is null"),
            (r#"{"seconds": 1, "is_on": 1}"#, "is_on: must be true or false, and is 1"),
            (r#"{"seconds": 1, "all": {}}"#, "all: must be a list, and is an object"),
            (r#"{"seconds": 1, "all": [{}]}"#, "all[0].content: is required"),
            (r#"{"seconds": 1, "all": [7]}"#, "all[0]: must be an object, and is 7"),
            (
                r#"{"seconds": 1, "all": [{"x": 1}]}"#,
                "all[0].x: is not a field of this request: expected `content`",
            ),
            (r#"{"seconds": 1, "names": {"a": true}}"#, "names.a: must be a text, and is true"),
            (r#"{"seconds": 1, "names": [1]}"#, "names: must be an object, and is a list"),
            ("{}", "seconds: is required"),
            (" []", "body: must be a JSON object"),
            ("7", "body: must be a JSON object"),
            ("{", "body: is not JSON: EOF while parsing an object at line 1 column 1"),
            ("", "body: is not JSON: EOF while parsing a value at line 1 column 0"),
            (r#"{"seconds": 1} x"#, "body: has something after its JSON object"),
        ] {
            assert_eq!(read::<Fields>(body.as_bytes()).unwrap_err().to_string(), said, "{body}");
        }
        let many = format!(r#"{{"seconds": 1, "all": [{}]}}"#, "7,".repeat(MAX_VALUES));
        let error = read::<Fields>(many.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "body: has more than 100000 keys and values: send data as texts");
        let wrong = format!(r#"{{"seconds": "aé{}"}}"#, "x".repeat(100_000));
        let error = read::<Fields>(wrong.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, r#"seconds: must be a number, and is the text "a""#);
        let long = format!(r#"{{"seconds": "{}, expected f64"}}"#, "é".repeat(1000));
        assert!(read::<Fields>(long.as_bytes()).unwrap_err().message.len() <= MAX_REPEATED);
        let error = read_or_empty::<Fields>(b"").unwrap_err();
        assert_eq!(error.to_string(), "seconds: is required");
        let error = read::<NoFields>(br#"{"x": null}"#).unwrap_err();
        assert_eq!(error.to_string(), "x: is not a field of this request: there are no fields");
    }
}
