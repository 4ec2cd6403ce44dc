//! The lines that clients read while a cell runs, each a JSON object with its type.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use isolator_pool::pool::session::{FOR_PROGRAMS, Occasion, ShownThing};
use isolator_pool::run::output::Stream;
use serde::Serialize;
use serde_json::json;

use crate::result::media::Form;

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

/// A result as clients read it.
#[derive(Debug, Serialize)]
struct ResultLine {
    r#type: &'static str,
    is_main_result: bool,
    #[serde(flatten)]
    fields: BTreeMap<&'static str, Form>,
    /// Forms without a field of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Form>,
}

/// The line of something that a cell shows.
pub(super) fn shown(thing: ShownThing) -> Shown {
    let (mut fields, mut extra) = (BTreeMap::new(), BTreeMap::new());
    for (media_type, content) in thing.forms {
        // A kernel that is not ours says whatever it likes.
        let as_json = match (media_type.strip_prefix(FOR_PROGRAMS), &*media_type) {
            (Some("error"), _) => {
                return Shown::Error(serde_json::from_slice(&content).unwrap_or_default());
            }
            (Some("table"), _) => Some("data"),
            (Some("chart"), _) => Some("chart"),
            // The form that the value itself has comes first.
            (Some("json"), _) if !fields.contains_key("json") => Some("json"),
            (None, "application/json") => Some("json"),
            _ => None,
        };
        if as_json.is_some() || media_type.starts_with(FOR_PROGRAMS) {
            fields.extend(as_json.zip(Form::json(&content)));
            continue;
        }
        let field = FIELDS.iter().find(|(known, _)| *known == media_type).map(|it| it.1);
        match (field, Form::of(&media_type, &content)) {
            // An empty text is none: a bundle of forms has one if it has no other.
            (Some("text"), Form::Text(text)) if text.is_empty() => {}
            (Some("text"), Form::Text(text)) => {
                fields.insert("text", Form::Text(unquoted(&text).to_owned()));
            }
            (Some(field), form) => drop(fields.insert(field, form)),
            (None, form) => drop(extra.insert(media_type, form)),
        }
    }
    let is_main_result = thing.occasion == Occasion::Result;
    Shown::Result(line(&ResultLine { r#type: "result", is_main_result, fields, extra }))
}

/// The text of a value; that of a text is without its quotation marks, as these clients compare it.
fn unquoted(text: &str) -> &str {
    let inner = |mark| text.strip_prefix(mark)?.strip_suffix(mark);
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

/// Characters that some readers take for the end of a line. In JSON they are white space, or can be escaped.
const ENDS_OF_LINES: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

fn line(value: &impl Serialize) -> Bytes {
    // Maps have texts as their keys, so there is no error.
    let mut line = serde_json::to_string(value).unwrap_or_default();
    if line.contains(ENDS_OF_LINES) {
        line = line.chars().fold(String::with_capacity(line.len() + 64), |mut whole, c| {
            match c {
                '\n' | '\r' => whole.push(' '),
                c if ENDS_OF_LINES.contains(&c) => {
                    whole.push_str(&format!("\\u{:04x}", u32::from(c)));
                }
                c => whole.push(c),
            }
            whole
        });
    }
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
    use serde_json::Value;

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
            ("application/json", "{\"a\":\n[1]}"),
            ("application/vnd.isolator.json", "[2]"),
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
        let list = result(&[("application/vnd.isolator.json", "[2]")], Occasion::Cell);
        assert_eq!(list, json!({"type": "result", "is_main_result": false, "json": [2]}));
        let latex = result(&[("text/plain", ""), ("text/latex", "$x$")], Occasion::Cell);
        assert_eq!(latex, json!({"type": "result", "is_main_result": false, "latex": "$x$"}));
    }

    #[test]
    fn a_line_has_one_end_for_every_reader() {
        let ends = "a\nb\rc\u{85}d\u{2028}e\u{2029}f";
        for line in [
            printed(Stream::Stdout, ends),
            match shown(thing(
                &[("text/plain", ends), ("application/json", "[1,\r\n2]")],
                Occasion::Result,
            )) {
                Shown::Result(line) => line,
                Shown::Error(failure) => panic!("{failure:?}"),
            },
        ] {
            let text = std::str::from_utf8(&line).unwrap().strip_suffix('\n').unwrap();
            assert!(!text.contains(ENDS_OF_LINES), "{text}");
            let read: Value = serde_json::from_str(text).unwrap();
            assert_eq!(read["text"], ends);
        }
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
