//! The JSON of a caller, with numbers as they were written.
//!
//! A parser makes a number of `1.10`, and `1.1` of that number. A caller that gives a number where a text belongs means
//! its digits.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use memchr::memchr2;
use serde::de::Error as _;
use serde_json::value::RawValue;
use serde_json::{Error, Value};

/// Most levels of lists and objects, as in the parser of messages.
const MAX_DEPTH: usize = 128;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given {
    Null,
    Bool(bool),
    /// The digits of a number.
    Number(String),
    String(String),
    Array(Vec<Given>),
    Object(Object),
}

/// The keys and values of an object.
pub(crate) type Object = BTreeMap<String, Given>;

impl Given {
    /// Parses JSON.
    ///
    /// # Errors
    ///
    /// When it is not valid, or nested too deeply.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let valid: &RawValue = serde_json::from_str(text)?;
        Parser { rest: valid.get() }.value(0)
    }

    /// The same for a parser that needs the usual type. Numbers can lose digits.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(is_true) => Value::Bool(is_true),
            Self::Number(digits) => digits.parse().map_or(Value::String(digits), Value::Number),
            Self::String(text) => Value::String(text),
            Self::Array(items) => items.into_iter().map(Self::into_value).collect(),
            Self::Object(entries) => {
                entries.into_iter().map(|(key, value)| (key, value.into_value())).collect()
            }
        }
    }

    /// The text, if it is one.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

impl From<Value> for Given {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(is_true) => Self::Bool(is_true),
            Value::Number(number) => Self::Number(number.to_string()),
            Value::String(text) => Self::String(text),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(entries) => {
                let entries = entries.into_iter().map(|(key, value)| (key, value.into()));
                Self::Object(entries.collect())
            }
        }
    }
}

/// Writes it as JSON.
impl Display for Given {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::to_string(text).map_err(|_| fmt::Error);
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(is_true) => write!(f, "{is_true}"),
            Self::Number(digits) => f.write_str(digits),
            Self::String(text) => f.write_str(&quoted(text)?),
            Self::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "[" } else { "," })?;
                }
                f.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Self::Object(entries) => {
                for (index, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{}:{value}", if index == 0 { "{" } else { "," }, quoted(key)?)?;
                }
                f.write_str(if entries.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

/// Reads JSON that is known to be valid.
struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Given, Error> {
        if depth >= MAX_DEPTH {
            return Err(Error::custom("it is nested too deeply"));
        }
        Ok(match self.next() {
            Some(b'"') => Given::String(self.string()?),
            Some(b'[') => {
                let mut items = Vec::new();
                while self.has_more(b']') {
                    items.push(self.value(depth + 1)?);
                }
                Given::Array(items)
            }
            Some(b'{') => {
                let mut entries = Object::new();
                while self.has_more(b'}') {
                    let key = self.string()?;
                    // The colon.
                    self.skip();
                    entries.insert(key, self.value(depth + 1)?);
                }
                Given::Object(entries)
            }
            _ => match self.word() {
                "null" => Given::Null,
                "true" => Given::Bool(true),
                "false" => Given::Bool(false),
                digits => Given::Number(digits.to_owned()),
            },
        })
    }

    /// The next byte that is no white space, which stays.
    fn next(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_start();
        self.rest.bytes().next()
    }

    /// Leaves out the next byte that is no white space.
    fn skip(&mut self) {
        self.next();
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    /// Leaves out the bracket or comma before the next item, or the bracket after the last.
    fn has_more(&mut self, end: u8) -> bool {
        // An empty list or object has nothing between its brackets.
        if self.next() != Some(end) {
            self.skip();
        }
        let has_more = self.next().is_some_and(|next| next != end);
        if !has_more {
            self.skip();
        }
        has_more
    }

    fn string(&mut self) -> Result<String, Error> {
        self.next();
        let text = self.rest;
        let mut end = 1;
        while let Some(at) = text.get(end..).and_then(|rest| memchr2(b'"', b'\\', rest.as_bytes()))
        {
            end += at + 1;
            if text.as_bytes()[end - 1] == b'"' {
                break;
            }
            // The escaped character; it begins with one byte.
            end += 1;
        }
        let (string, rest) = text.split_at_checked(end).unwrap_or((text, ""));
        self.rest = rest;
        serde_json::from_str(string)
    }

    fn word(&mut self) -> &str {
        let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, ',' | ']' | '}');
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    proptest::proptest! {
        #[test]
        fn it_is_equal_to_the_result_of_another_parser(
            texts in proptest::collection::vec(".{0,8}", 0..6),
            numbers in proptest::collection::vec(proptest::num::f64::NORMAL, 0..4),
        ) {
            let mut value = json!({ "texts": texts, "numbers": numbers, "none": [], "empty": {}, "n": null });
            for text in &texts {
                value = json!([{ text.as_str(): value, "\"": "[{,:\\" }, [], {}, true, [false]]);
            }
            for text in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
                let given = Given::parse(&text).unwrap();
                proptest::prop_assert_eq!(&given, &Given::from(value.clone()));
                proptest::prop_assert_eq!(Given::parse(&given.to_string()).unwrap(), given);
            }
        }
    }

    #[test]
    fn numbers_stay_as_they_were_written() {
        let text = "[12345678901234567890123,1.10,1e2,-0,1E+400,{\"a\":0.10}]";
        assert_eq!(Given::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn invalid_json_is_an_error() {
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        for text in ["", "[1,]", "{\"a\"}", "01", "NaN", "\"\\ud800\"", "[1] 2", "\"\t\"", &deep] {
            assert!(Given::parse(text).is_err(), "{text}");
        }
    }
}
