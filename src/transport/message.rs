//! What a message can be. Both transports check that before they parse it.
//!
//! A tree of small JSON values takes a hundred times the memory of its text, and what answers, logs and sessions repeat
//! of a message takes its memory again. So the number of values is limited as well as the length, and only the
//! arguments of a call can be long.
//!
//! rmcp parses a message in several steps, and each copies the texts in which something is escaped. So long arguments are
//! taken out of a message and parsed here.

use std::ops::Range;

use memchr::memchr2;
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::mcp::server::LongArguments;

/// Longest message, in bytes: the largest request with all its files in base64, and room for its code and its standard
/// input.
pub(super) const MAX_MESSAGE: usize = 32 << 20;

/// Longest message without the arguments of a call, in bytes.
const MAX_REST: usize = 64 << 10;

/// Most values in a message, whatever its length, besides those that each file of a call needs.
const MAX_VALUES: usize = 10_000;

/// Most values for each file of a call: its name, content and encoding with their keys.
const VALUES_OF_FILE: usize = 8;

/// The parts of a long message that the check needs.
#[derive(Deserialize)]
struct Long<'a> {
    method: &'a str,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// The part that is read of a message that is otherwise invalid.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(default)]
    method: Option<IgnoredAny>,
}

/// The parts of a message that opens a session.
#[derive(Deserialize)]
struct Opening {
    method: String,
    params: OpeningParams,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpeningParams {
    protocol_version: String,
}

/// Limits of messages; cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    values: usize,
}

impl Limits {
    /// The limits where a call can bring so many files.
    pub(crate) fn new(files: usize) -> Self {
        Self { values: MAX_VALUES + files * VALUES_OF_FILE }
    }

    /// Checks the text of a message, and takes the arguments out of a long one. The error is for its sender. Text that
    /// is not JSON may pass, because whoever parses it says what is wrong with it.
    pub(super) fn check(self, text: &[u8]) -> Result<Option<Shortened>, ErrorData> {
        let arguments = match text.len() > MAX_REST {
            true => Some(long_arguments(text)?),
            false => None,
        };
        if count_values(text, self.values) > self.values {
            let message = format!(
                "the message has more than {} values; send data as the content of files",
                self.values
            );
            return Err(ErrorData::invalid_request(message, None));
        }
        arguments.map(|range| Shortened::new(text, range)).transpose()
    }
}

/// Where the arguments are in a long message.
fn long_arguments(text: &[u8]) -> Result<Range<usize>, ErrorData> {
    let refused = |message| Err(ErrorData::invalid_request(message, None));
    // The parser of JSON refuses repeated keys here, so nothing is hidden behind one.
    let Ok(Long { method, params }) = serde_json::from_slice::<Long<'_>>(text) else {
        return refused(format!(
            "the message can't be read: one of more than {MAX_REST} bytes must be a call of a tool"
        ));
    };
    let arguments = params.and_then(|params| params.arguments).map_or("", RawValue::get);
    if method != "tools/call" || text.len() - arguments.len() > MAX_REST {
        return refused(format!(
            "the message is too long: only the arguments of a tool can be longer than {MAX_REST} bytes"
        ));
    }
    // They are borrowed from the text.
    let start = arguments.as_ptr().addr() - text.as_ptr().addr();
    Ok(start..start + arguments.len())
}

/// A long message without its arguments.
#[derive(Debug)]
pub(super) struct Shortened {
    /// The message, with other arguments in their place.
    pub(super) text: Vec<u8>,
    /// The arguments.
    pub(super) arguments: LongArguments,
}

impl Shortened {
    fn new(text: &[u8], range: Range<usize>) -> Result<Self, ErrorData> {
        let unreadable = |error: serde_json::Error| {
            let message = format!("the message can't be read: {error}");
            ErrorData::new(ErrorCode::PARSE_ERROR, message, None)
        };
        let arguments = &text[range.clone()];
        // What is no object is left for rmcp to refuse.
        let (arguments, instead) = match arguments.first() {
            Some(b'{') => (serde_json::from_slice(arguments).map_err(unreadable)?, "{}"),
            _ => (serde_json::Map::new(), "[]"),
        };
        let text = [&text[..range.start], instead.as_bytes(), &text[range.end..]].concat();
        Ok(Self { text, arguments: LongArguments::new(arguments) })
    }
}

/// The identifier of a message that is refused, if there is one.
pub(super) fn find_id(text: &[u8]) -> Option<RequestId> {
    let Head { id, .. } = serde_json::from_slice(text).ok()?;
    serde_json::from_str(id.get()).ok()
}

/// Whether somebody waits for the answer to a message: it has a method and an identifier.
pub(super) fn is_request(text: &[u8]) -> bool {
    serde_json::from_slice::<Head<'_>>(text).is_ok_and(|head| head.method.is_some())
}

/// The protocol revision that a message asks for, if it opens a session.
pub(super) fn opened_revision(text: &[u8]) -> Option<String> {
    let Opening { method, params } = serde_json::from_slice(text).ok()?;
    (method == "initialize").then_some(params.protocol_version)
}

/// Counts keys and values until there are more than `most`. Every one but the first follows a separator or an opening
/// bracket.
fn count_values(text: &[u8], most: usize) -> usize {
    let mut count = 1;
    let mut rest = text;
    while count <= most {
        // Most of a long message is inside of strings.
        let Some(at) = rest.iter().position(|byte| b"\",:[{".contains(byte)) else { break };
        let found = rest[at];
        rest = &rest[at + 1..];
        if found == b'"' {
            rest = after_string(rest);
        } else {
            count += 1;
        }
    }
    count
}

/// What follows the string whose opening quotation mark was before `rest`.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What an independent parser counts.
    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(values) => values.iter().map(count).sum(),
            Value::Object(entries) => entries.values().map(|value| 1 + count(value)).sum::<usize>(),
            _ => 0,
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_has_more_values_than_are_counted(
            keys in proptest::collection::vec(".{0,8}", 0..6),
            texts in proptest::collection::vec(".{0,8}", 0..6),
            depth in 0_usize..5,
        ) {
            let mut value = json!({ "keys": keys, "texts": texts, "none": [], "empty": {}, "n": -1.5e3 });
            for key in keys.iter().cycle().take(if keys.is_empty() { 0 } else { depth }) {
                value = json!([{ key.as_str(): value, "\"": "[{,:\\" }]);
            }
            for text in [serde_json::to_vec(&value).unwrap(), serde_json::to_vec_pretty(&value).unwrap()] {
                let counted = count_values(&text, usize::MAX);
                // An empty array or object counts as if it held something.
                proptest::prop_assert!((count(&value)..=2 * count(&value)).contains(&counted));
            }
        }
    }

    fn check(message: &str) -> Result<(), String> {
        let checked = Limits::new(200).check(message.as_bytes());
        checked.map(drop).map_err(|error| error.message.into_owned())
    }

    fn call(arguments: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","arguments":{arguments}}}}}"#
        )
    }

    #[test]
    fn arguments_can_be_long_and_nothing_else() {
        let long = "x".repeat(1 << 20);
        assert_eq!(check(&call(&json!({ "stdin": long }).to_string())), Ok(()));
        for part in ["id", "method", "meta", "name"] {
            let mut message: Value = serde_json::from_str(&call("{}")).unwrap();
            match part {
                "meta" => message["params"]["_meta"] = json!({ "progressToken": long }),
                "name" => message["params"]["name"] = json!(long),
                _ => message[part] = json!(long),
            }
            let error = check(&message.to_string()).unwrap_err();
            assert!(error.contains("too long"), "{part}: {error}");
        }
        let twice = call("{}").replacen("\"id\":1", &format!("\"method\":{long:?},\"id\":1"), 1);
        assert!(check(&twice).unwrap_err().contains("can't be read"));
    }

    #[test]
    fn the_number_of_values_is_limited_whatever_they_are() {
        for (what, one) in
            [("numbers", "0"), ("arrays", "[]"), ("objects", "{}"), ("texts", r#""""#)]
        {
            let many = format!("{{\"x\":[{}]}}", vec![one; 12_000].join(","));
            assert!(check(&call(&many)).unwrap_err().contains("values"), "{what}");
        }
        let keys: Vec<_> = (0..6000).map(|key| format!("\"{key}\":0")).collect();
        assert!(check(&call(&format!("{{{}}}", keys.join(",")))).unwrap_err().contains("values"));
        let text = format!("[{{\"a\":{:?}}}]", ",:[{\"\\".repeat(10_000));
        assert_eq!(check(&call(&text)), Ok(()), "they are in a string");
    }

    #[test]
    fn a_message_that_opens_a_session_is_recognised() {
        let hello =
            br#"{"id":0,"params":{"x":[1],"protocolVersion":"2025-06-18"},"method":"initialize"}"#;
        assert_eq!(opened_revision(hello).as_deref(), Some("2025-06-18"));
        for other in [r#"{"method":"initialize"}"#, &call("{}"), "[]", "{"] {
            assert_eq!(opened_revision(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_identifier_is_found_in_what_is_otherwise_invalid() {
        assert_eq!(find_id(br#"{"id":7,"x":[1,2]}"#), Some(RequestId::Number(7)));
        assert_eq!(find_id(br#"{"id":[7]}"#), None);
        let deep = format!("{{\"x\":{}{},\"id\":7}}", "[".repeat(9999), "]".repeat(9999));
        assert_eq!(find_id(deep.as_bytes()), Some(RequestId::Number(7)));
    }
}
