//! The lines that clients read while a cell runs, each a JSON object with its type.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::pool::session::{FOR_PROGRAMS, Occasion, ShownThing};
use isolator_pool::run::output::Stream;
use serde_json::{Map, Value, json};

/// The forms that have a field of their own, by their media types. All are texts, or in base64.
const FIELDS: [(&str, &str); 9] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/javascript", "javascript"),
];

/// Longest text of an exception, in bytes.
const MAX_ERROR: usize = 512 << 10;

/// An exception that ended a cell, or another reason why it has ended.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// The number of the cell in its context.
pub(super) fn count(cells: u32) -> Bytes {
    line(&json!({ "type": "number_of_executions", "execution_count": cells }))
}

/// Something that the cell has printed.
pub(super) fn printed(stream: Stream, text: &str) -> Bytes {
    let kind = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    line(&json!({ "type": kind, "text": text, "timestamp": now }))
}

/// A sign of life, which clients skip.
pub(super) fn keepalive() -> Bytes {
    line(&json!({ "type": "keepalive" }))
}

/// Why the cell has failed.
pub(super) fn error(failure: &Failure) -> Bytes {
    let cut = |text: &str| text[..text.floor_char_boundary(MAX_ERROR)].to_owned();
    let Failure { name, value, traceback } = failure;
    line(&json!({
        "type": "error", "name": cut(name), "value": cut(value), "traceback": cut(traceback),
    }))
}

/// The last line.
pub(super) fn end() -> Bytes {
    line(&json!({ "type": "end_of_execution" }))
}

/// Something that a cell shows.
pub(super) enum Shown {
    Result(Bytes),
    Error(Failure),
}

/// The line of something that a cell shows.
pub(super) fn shown(thing: ShownThing) -> Shown {
    let is_main = thing.occasion == Occasion::Result;
    let (mut fields, mut extra) = (Map::new(), Map::new());
    for (media_type, content) in thing.forms {
        if let Some(name) = media_type.strip_prefix(FOR_PROGRAMS) {
            match (name, serde_json::from_slice::<Value>(&content)) {
                ("error", Ok(failure)) => {
                    return Shown::Error(serde_json::from_value(failure).unwrap_or_default());
                }
                ("table", Ok(data)) => drop(fields.insert("data".to_owned(), data)),
                ("chart", Ok(chart)) => drop(fields.insert("chart".to_owned(), chart)),
                // A kernel that is not ours says whatever it likes.
                _ => {}
            }
            continue;
        }
        if media_type == "application/json" {
            if let Ok(value) = serde_json::from_slice(&content) {
                fields.insert("json".to_owned(), value);
            }
            continue;
        }
        let field = FIELDS.iter().find(|(known, _)| *known == media_type).map(|it| it.1);
        let value = value(&media_type, content);
        match field {
            // An empty text is none: a bundle of forms has one if it has no other.
            Some("text") if value.as_str().is_some_and(str::is_empty) => {}
            Some("text") => {
                let text = value.as_str().map(unquoted).unwrap_or_default();
                fields.insert("text".to_owned(), text.into());
            }
            Some(field) => drop(fields.insert(field.to_owned(), value)),
            None => drop(extra.insert(media_type, value)),
        }
    }
    fields.insert("type".to_owned(), "result".into());
    fields.insert("is_main_result".to_owned(), is_main.into());
    if !extra.is_empty() {
        fields.insert("extra".to_owned(), extra.into());
    }
    Shown::Result(line(&Value::Object(fields)))
}

/// A form as a text, or as what its JSON says; other bytes are in base64.
fn value(media_type: &str, content: Vec<u8>) -> Value {
    if media_type.ends_with("json")
        && let Ok(value) = serde_json::from_slice(&content)
    {
        return value;
    }
    let is_text = media_type.starts_with("text/")
        || ["image/svg+xml", "application/javascript"].contains(&media_type);
    if is_text {
        return String::from_utf8_lossy(&content).into_owned().into();
    }
    BASE64.encode(content).into()
}

/// The text of a value; that of a text is without its quotation marks, as these clients compare it.
fn unquoted(text: &str) -> &str {
    let inner = |mark| text.strip_prefix(mark)?.strip_suffix(mark);
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

fn line(value: &Value) -> Bytes {
    let mut line = value.to_string();
    line.push('\n');
    line.into()
}

/// The texts of a stream, whose characters can come in pieces.
#[derive(Debug, Default)]
struct Texts {
    /// The beginning of a character.
    rest: Vec<u8>,
}

impl Texts {
    /// Takes bytes, and returns the text that is complete. Bytes that belong to no character become replacement characters.
    fn take(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let mut complete = self.rest.len();
        for back in 1..=3.min(self.rest.len()) {
            let at = self.rest.len() - back;
            let length = match self.rest[at] {
                0b1100_0000..=0b1101_1111 => 2,
                0b1110_0000..=0b1110_1111 => 3,
                0b1111_0000..=0b1111_0111 => 4,
                0b1000_0000..=0b1011_1111 => continue,
                _ => 1,
            };
            if length > back {
                complete = at;
            }
            break;
        }
        let rest = self.rest.split_off(complete);
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest = rest;
        text
    }

    /// The end of a stream: what is left is no whole character.
    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned()
    }
}

/// What a cell prints, in messages that end with a line if they can: an interpreter can write the end of a line by itself.
#[derive(Debug, Default)]
pub(super) struct Printed {
    stdout: Texts,
    stderr: Texts,
    /// The beginning of a line.
    held: Option<(Stream, String)>,
}

/// A longer beginning of a line is not held back, in bytes.
const MAX_HELD: usize = 4096;

impl Printed {
    /// Takes output. Returns the messages that are complete, and whether something is held back.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) -> (Vec<Bytes>, bool) {
        let text = match stream {
            Stream::Stdout => self.stdout.take(bytes),
            Stream::Stderr => self.stderr.take(bytes),
        };
        let mut messages = Vec::new();
        let mut all = match self.held.take() {
            Some((other, held)) if other != stream => {
                messages.push(printed(other, &held));
                text
            }
            Some((_, held)) => held + &text,
            None => text,
        };
        let whole = all.rfind('\n').map_or(0, |at| at + 1);
        let rest = all.split_off(if all.len() - whole > MAX_HELD { all.len() } else { whole });
        if !all.is_empty() {
            messages.push(printed(stream, &all));
        }
        let is_held = !rest.is_empty();
        self.held = is_held.then_some((stream, rest));
        (messages, is_held)
    }

    /// The message of what is held back.
    pub(super) fn flush(&mut self) -> Option<Bytes> {
        self.held.take().map(|(stream, held)| printed(stream, &held))
    }

    /// The last messages.
    pub(super) fn finish(&mut self) -> Vec<Bytes> {
        let mut messages: Vec<_> = self.flush().into_iter().collect();
        for (stream, texts) in
            [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)]
        {
            let rest = texts.finish();
            if !rest.is_empty() {
                messages.push(printed(stream, &rest));
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_lines_if_they_can() {
        let text = |line: &Bytes| {
            let line: Value = serde_json::from_slice(line).unwrap();
            line["text"].as_str().unwrap().to_owned()
        };
        let mut output = Printed::default();
        let mut take = |stream, bytes: &str| {
            let (messages, is_held) = output.take(stream, bytes.as_bytes());
            (messages.iter().map(text).collect::<Vec<_>>(), is_held)
        };
        assert_eq!(take(Stream::Stdout, "a"), (vec![], true));
        assert_eq!(take(Stream::Stdout, "\nb\nc"), (vec!["a\nb\n".to_owned()], true));
        assert_eq!(take(Stream::Stderr, "e\n"), (vec!["c".to_owned(), "e\n".to_owned()], false));
        let long = "x".repeat(MAX_HELD + 1);
        assert_eq!(take(Stream::Stdout, &long), (vec![long.clone()], false));
        assert_eq!(take(Stream::Stdout, "end"), (vec![], true));
        assert_eq!(output.finish().iter().map(text).collect::<Vec<_>>(), ["end"]);
        assert!(output.flush().is_none());
    }

    fn thing(forms: &[(&str, &str)], occasion: Occasion) -> ShownThing {
        let forms = forms.iter().map(|(kind, text)| ((*kind).to_owned(), text.as_bytes().to_vec()));
        ShownThing { occasion, forms: forms.collect() }
    }

    fn result(forms: &[(&str, &str)], occasion: Occasion) -> Value {
        match shown(thing(forms, occasion)) {
            Shown::Result(line) => serde_json::from_slice(&line).unwrap(),
            Shown::Error(failure) => panic!("{failure:?}"),
        }
    }

    #[test]
    fn each_form_is_in_its_field() {
        let all = [
            ("text/plain", "'hi'"),
            ("image/png", "abc"),
            ("application/json", "{\"a\":[1]}"),
            ("application/vnd.isolator.table", "{\"a\":[1]}"),
            ("application/vnd.isolator.chart", "{\"type\":\"line\"}"),
            ("application/vnd.isolator.chart", "no JSON"),
            ("application/vnd.plot+json", "{\"x\":1}"),
        ];
        assert_eq!(
            result(&all, Occasion::Result),
            json!({
                "type": "result", "is_main_result": true, "text": "hi", "png": "YWJj", "json": {"a": [1]},
                "data": {"a": [1]}, "chart": {"type": "line"}, "extra": {"application/vnd.plot+json": {"x": 1}},
            })
        );
        let latex = result(&[("text/plain", ""), ("text/latex", "$x$")], Occasion::Cell);
        assert_eq!(latex, json!({"type": "result", "is_main_result": false, "latex": "$x$"}));
    }

    #[test]
    fn an_exception_is_not_a_result() {
        let forms =
            [("application/vnd.isolator.error", r#"{"name":"E","value":"v","traceback":"t"}"#)];
        let Shown::Error(failure) = shown(thing(&forms, Occasion::Cell)) else {
            panic!("a result")
        };
        assert_eq!((failure.name.as_str(), failure.value.as_str()), ("E", "v"));
        let other = [("application/vnd.isolator.error", "[1]")];
        assert!(matches!(shown(thing(&other, Occasion::Cell)), Shown::Error(_)));
    }

    #[test]
    fn characters_in_pieces_come_whole() {
        let text = "aü€😀z";
        for size in 1..6 {
            let mut texts = Texts::default();
            let mut all: String = text.as_bytes().chunks(size).map(|it| texts.take(it)).collect();
            all.push_str(&texts.finish());
            assert_eq!(all, text, "{size}");
        }
        let mut broken = Texts::default();
        assert_eq!(broken.take(b"a\xff\xf0\x9f"), "a\u{fffd}");
        assert_eq!(broken.finish(), "\u{fffd}");
        assert_eq!(broken.take(&[0x80; 5]), "\u{fffd}".repeat(5));
    }

    #[test]
    fn only_whole_quotation_marks_are_removed() {
        for (text, expected) in
            [("'a'", "a"), ("\"a\"", "a"), ("'a\"", "'a\""), ("'", "'"), ("1", "1")]
        {
            assert_eq!(unquoted(text), expected);
        }
    }
}
