//! Forms of the things that cells show, as notebooks have them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::pool::session::FOR_PROGRAMS;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::result::units::text;

/// The media type of an exception, if a program gets what a cell shows.
pub(crate) const EXCEPTION: &str = "application/vnd.isolator.error";

/// What is said in its place where the cell had shown so much before that there was no room for it.
pub(crate) const NO_EXCEPTION: &str = "the exception is missing, because the cell had shown too much before: 500 things, or as many bytes as \
     results.maxFilesKB allows";

/// How a document in PDF begins.
const PDF: &[u8] = b"%PDF";

/// A form of a thing.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Form {
    /// JSON as it came. No tree is made of it, which would be many times larger.
    Json(Box<RawValue>),
    /// Text, or other bytes in base64.
    Text(String),
}

impl Form {
    /// The form of this media type.
    pub(crate) fn of(kind: &str, content: &[u8]) -> Self {
        if kind.ends_with("json") || kind.starts_with(FOR_PROGRAMS) {
            return Self::json(content).unwrap_or_else(|| Self::Text(text(content)));
        }
        Self::Text(written(kind, content))
    }

    /// The form of a content that is JSON.
    pub(crate) fn json(content: &[u8]) -> Option<Self> {
        passed_on(content).map(Self::Json)
    }
}

/// A form as a text, in base64 where it is binary.
pub(crate) fn written(kind: &str, content: &[u8]) -> String {
    // Kernels send the bytes of these. All else is a text that the program has made, also of what is binary.
    let is_binary = match kind {
        "image/png" | "image/jpeg" => true,
        "application/pdf" => content.starts_with(PDF),
        _ => false,
    };
    if is_binary { BASE64.encode(content) } else { text(content) }
}

/// The JSON of a text, if it is some that all clients can read: it is not nested too deeply, and its texts and numbers are sound.
fn passed_on(text: &[u8]) -> Option<Box<RawValue>> {
    check_json(text).ok()?;
    serde_json::from_slice(text).ok()
}

/// Reads a text as JSON that is not nested too deeply and has sound texts and numbers, and keeps nothing of it.
///
/// # Errors
///
/// The first mistake, with its line.
pub(crate) fn check_json(text: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<Sound>(text).map(drop)
}

/// A value that was read to its end, and is not kept.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_that_are_shown_keep_their_forms() {
        let json =
            |kind: &str, content: &[u8]| serde_json::to_string(&Form::of(kind, content)).unwrap();
        assert_eq!(json("application/json", b" [0, {\"a\": 1e2}]\n"), "[0, {\"a\": 1e2}]");
        assert_eq!(json("application/json", b"[1] [2]"), "\"[1] [2]\"");
        assert_eq!(json("application/json", b"\"\xff\""), "\"\\\"\u{fffd}\\\"\"");
        assert_eq!(json("text/html", b"<b>"), "\"<b>\"");
        for (kind, content, expected) in [
            ("image/png", "png", "cG5n"),
            ("application/pdf", "%PDF-", "JVBERi0="),
            // These are in base64 as the program has shown them.
            ("application/pdf", "JVBERi0=", "JVBERi0="),
            ("image/gif", "R0lG", "R0lG"),
            ("application/x-tex", "$x$", "$x$"),
            ("text/plain", "%PDF-", "%PDF-"),
        ] {
            assert_eq!(json(kind, content.as_bytes()), format!("\"{expected}\""), "{kind}");
        }
    }

    #[test]
    fn only_json_that_clients_can_read_is_passed_on() {
        for fine in ["null", "[0, -1, 1.5, true, \"\\u00e9\", {\"a\": {}}]", "\"\\ud83d\\ude00\""] {
            let padded = format!(" {fine}\n");
            assert_eq!(passed_on(padded.as_bytes()).unwrap().get(), fine);
        }
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        for wrong in ["", "[", "[1] [2]", "\"\\ud800\"", "{\"\\ud800\": 1}", "1e999", &deep] {
            assert!(passed_on(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(passed_on(b"\"\xff\"").is_none());
    }
}
