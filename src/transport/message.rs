//! The limits of a message. Both transports check them before they parse it.
//!
//! A tree of small JSON values takes a hundred times the memory of its text, and what answers, logs and sessions repeat
//! of a message takes its memory again. So the number of values is limited as well as the length, and only the
//! arguments of a call can be long.
//!
//! rmcp parses a message in several steps, and each copies the texts in which something is escaped. So long arguments are
//! taken out of a message and parsed here. The same is done with numbers that would not stay as they were written.

use std::ops::Range;

use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

use crate::mcp::caller::TakenArguments;
use crate::node::HANDLE_ARGUMENTS;
use crate::request::understand::given::{Given, Object};
use crate::request::values::{after_string, count_values};

/// Longest message, in bytes: the largest request with all its files in base64, and room for its code and its standard
/// input.
pub(crate) const MAX_MESSAGE: usize = 32 << 20;

/// Longest message without the arguments of a call, in bytes.
const MAX_REST: usize = 64 << 10;

/// Most values in a message, whatever its length, besides those that each file of a call needs.
const MAX_VALUES: usize = 10_000;

/// Most values for each file of a call: its name, content and encoding with their keys.
const VALUES_OF_FILE: usize = 8;

/// Longest handle that stays in a message whose arguments are taken out of it.
const MAX_HANDLE: usize = 1024;

/// The first characters of numbers.
const NUMBER: &[u8] = b"-0123456789";

/// The parts of a call that the check needs.
#[derive(Deserialize)]
struct Message<'a> {
    method: &'a str,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
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
    /// The limits where a call can bring this number of files.
    pub(crate) fn new(files: usize) -> Self {
        Self { values: MAX_VALUES + files * VALUES_OF_FILE }
    }

    /// Checks the text of a message, and takes arguments out of it that have to be parsed apart. The error is for its
    /// sender. Text that is not JSON may pass, because its parser says what is wrong with it.
    pub(super) fn check(self, text: &[u8]) -> Result<Option<Shortened>, ErrorData> {
        let arguments = match text.len() > MAX_REST {
            true => Some(long_arguments(text)?),
            false if changes_numbers(text) => arguments(text),
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
    let Ok(Message { method, params }) = serde_json::from_slice(text) else {
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
    Ok(place(arguments, text))
}

/// Where the arguments are in a call of a tool, if they are an object.
fn arguments(text: &[u8]) -> Option<Range<usize>> {
    let Message { method, params } = serde_json::from_slice(text).ok()?;
    let arguments = params?.arguments?.get();
    (method == "tools/call" && arguments.starts_with('{')).then(|| place(arguments, text))
}

/// Where a part is in the text that it is borrowed from.
fn place(part: &str, text: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

/// Whether a parser would write a number in another way than the text does.
fn changes_numbers(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'"' || NUMBER.contains(byte)) {
        if rest[at] == b'"' {
            rest = after_string(&rest[at + 1..]);
            continue;
        }
        rest = &rest[at..];
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b",]}".contains(byte);
        let (digits, after) = rest.split_at(rest.iter().position(is_end).unwrap_or(rest.len()));
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        if digits.parse::<Number>().map_or(true, |number| number.to_string() != digits) {
            return true;
        }
        rest = after;
    }
    false
}

/// A message without its arguments.
#[derive(Debug)]
pub(super) struct Shortened {
    /// The message, with other arguments in their place.
    pub(super) text: Vec<u8>,
    /// The arguments.
    pub(super) arguments: TakenArguments,
}

impl Shortened {
    fn new(text: &[u8], range: Range<usize>) -> Result<Self, ErrorData> {
        let arguments = std::str::from_utf8(&text[range.clone()]).unwrap_or_default();
        // What is no object is left for rmcp to refuse.
        let (arguments, instead) = match Given::parse(arguments) {
            Ok(Given::Object(arguments)) => {
                let instead = handles(&arguments).to_string();
                (arguments, instead)
            }
            Ok(_) => (Default::default(), "[]".to_owned()),
            Err(error) => return Err(unreadable(&error)),
        };
        let text = [&text[..range.start], instead.as_bytes(), &text[range.end..]].concat();
        Ok(Self { text, arguments: TakenArguments::new(arguments) })
    }
}

/// The handles among arguments. They stay in a message, because rmcp compares them with its headers.
fn handles(arguments: &Object) -> Value {
    let handle = |(name, _): (&str, _)| {
        let handle = arguments.get(name)?.as_str()?;
        // No header has longer ones that are read.
        (handle.len() <= MAX_HANDLE).then(|| (name.to_owned(), json!(handle)))
    };
    Value::Object(HANDLE_ARGUMENTS.into_iter().filter_map(handle).collect())
}

fn unreadable(error: &serde_json::Error) -> ErrorData {
    let message = format!("the message can't be read as JSON: {error}");
    ErrorData::new(ErrorCode::PARSE_ERROR, message, None)
}

/// Why a text is no message, for its sender.
pub(super) fn explain(text: &[u8]) -> ErrorData {
    match serde_json::from_slice::<Value>(text) {
        Err(error) => unreadable(&error),
        Ok(Value::Array(_)) => {
            ErrorData::invalid_request("this is a list; send one message at a time", None)
        }
        Ok(_) => ErrorData::invalid_request(
            "this is not an MCP message: it must be an object with \"jsonrpc\": \"2.0\" and each key only once; a \
             request also has an id (a number or a text) and a method (a text), and params are an object",
            None,
        ),
    }
}

/// The identifier of a message, if there is only one that can be meant.
pub(super) fn find_id(text: &[u8]) -> Option<RequestId> {
    Head::of(text).id()
}

/// The answer to a message that is refused, whose sender waits for an answer with its identifier. JSON-RPC wants `null`
/// where that can't be told, and rmcp would leave it out.
pub(super) fn refusal(text: &[u8], error: &ErrorData) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": find_id(text), "error": error }).to_string().into_bytes()
}

/// Whether no answer is expected: a notification, or an answer to one of our own requests.
pub(super) fn is_one_way(text: &[u8]) -> bool {
    let is_json = serde_json::from_slice::<IgnoredAny>(text).is_ok();
    let Head { ids, has_method, has_answer, .. } = Head::of(text);
    is_json && if has_method { ids.is_empty() } else { has_answer }
}

/// The keys at the top of a text that should be a message, even if it is not valid.
#[derive(Default)]
struct Head<'t> {
    /// The text after each key `id`.
    ids: Vec<&'t [u8]>,
    has_method: bool,
    has_answer: bool,
    /// There is something before or after the object.
    has_more: bool,
}

impl<'t> Head<'t> {
    fn of(text: &'t [u8]) -> Self {
        let mut head = Self::default();
        let text = text.trim_ascii();
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let Some(mut rest) = text.strip_prefix(b"{") else {
            head.has_more = true;
            return head;
        };
        let mut depth = 1;
        while let Some(at) = rest.iter().position(|byte| b"\"{}[]".contains(byte)) {
            let (found, after) = (rest[at], &rest[at + 1..]);
            rest = after;
            match found {
                b'"' => {
                    rest = after_string(after);
                    if depth == 1 {
                        head.add(&after[..after.len() - rest.len()], rest);
                    }
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            if depth == 0 {
                head.has_more = !rest.is_empty();
                break;
            }
        }
        head
    }

    /// Adds a string and what follows it. It is a key if that is a colon. Its quotation mark is at its end.
    fn add(&mut self, string: &[u8], rest: &'t [u8]) {
        let Some(value) = rest.trim_ascii_start().strip_prefix(b":") else { return };
        match string {
            b"id\"" => self.ids.push(value),
            b"method\"" => self.has_method = true,
            b"result\"" | b"error\"" => self.has_answer = true,
            _ => {}
        }
    }

    /// The identifier, if there is only one that can be meant. That of an answer is not the sender's.
    fn id(&self) -> Option<RequestId> {
        let [id] = self.ids[..] else { return None };
        let is_request = self.has_method || !self.has_answer;
        let mut values = serde_json::Deserializer::from_slice(id).into_iter();
        values.next().filter(|_| is_request && !self.has_more)?.ok()
    }
}

/// The protocol revision that a message asks for, if it opens a session.
pub(super) fn opened_revision(text: &[u8]) -> Option<String> {
    let Opening { method, params } = serde_json::from_slice(text).ok()?;
    (method == "initialize").then_some(params.protocol_version)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
        let deep = format!("{{\"x\":{}{},\"id\":7}}", "[".repeat(9999), "]".repeat(9999));
        for (text, id) in [
            (deep.as_str(), json!(7)),
            (r#"{"id":7,"x":[1,2]}"#, json!(7)),
            (r#" {"x":{"id":8}, "id" : "a\"b" , "y":NaN}"#, json!("a\"b")),
            (r#"{"id":7,"method":"pi"#, json!(7)),
            (r#"{"id":7"#, json!(7)),
            ("\u{feff}{\"id\":7}", json!(7)),
            (r#"{"x":"\"id\":8","id":7,}"#, json!(7)),
            (r#"{"id":[7]}"#, Value::Null),
            (r#"{"id":7,"id":8}"#, Value::Null),
            (r#"{"id":7}{"id":8}"#, Value::Null),
            (r#"{"id":7,"result":{}}"#, Value::Null),
            (r#"{"x":"id","y":7}"#, Value::Null),
            (r#"{"id":"7}"#, Value::Null),
            (r#"[{"id":7}]"#, Value::Null),
            ("{", Value::Null),
            ("}", Value::Null),
        ] {
            let answer = refusal(text.as_bytes(), &ErrorData::invalid_request("no", None));
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["id"], id, "{text}");
        }
    }

    #[test]
    fn only_what_nobody_waits_for_gets_no_answer() {
        for text in [r#"{"method":"notifications/x"}"#, r#"{"id":1,"result":5}"#] {
            assert!(is_one_way(text.as_bytes()), "{text}");
        }
        for text in [r#"{"method":"x","params":NaN}"#, "{}", "[]", "5", r#"{"id":1,"method":5}"#] {
            assert!(!is_one_way(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn arguments_are_taken_out_where_a_number_would_change() {
        for (number, changes) in [
            ("0", false),
            ("-5", false),
            ("1.5", false),
            ("18446744073709551615", false),
            ("12345678901234567890123", true),
            ("1.10", true),
            ("1e2", true),
            ("-0", true),
            ("1e999", true),
            (r#""1.10""#, false),
        ] {
            let message = call(&format!(r#"{{"args":[{number}]}}"#));
            assert_eq!(changes_numbers(message.as_bytes()), changes, "{number}");
            let taken = Limits::new(200).check(message.as_bytes()).unwrap();
            assert_eq!(taken.is_some(), changes, "{number}");
        }
        let other = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"arguments":{"x":1.10}}}"#;
        assert!(Limits::new(200).check(other.as_bytes()).unwrap().is_none());
    }
}
