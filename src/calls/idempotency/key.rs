//! Keys of clients, and digests of the requests that they stand for.

use std::fmt::{self, Display, Write as _};

use sha2::{Digest as _, Sha256};

use crate::request::understand::given::Given;

/// Longest key in characters.
const MAX_KEY: usize = 255;

/// A key that a client has given to a call, by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 16]);

/// A text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must have 1 to {MAX_KEY} printable characters of ASCII, such as a UUID, with or without quotation marks around them"
)]
pub(crate) struct InvalidKey;

impl Key {
    /// Reads the key in the value of a header.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(crate) fn in_header(value: &[u8]) -> Result<Self, InvalidKey> {
        Self::read(std::str::from_utf8(value).map_err(|_| InvalidKey)?)
    }

    /// Reads a key. The quotation marks of a string in a header are no part of it.
    ///
    /// # Errors
    ///
    /// When it is empty, too long, or has other characters.
    pub(crate) fn read(text: &str) -> Result<Self, InvalidKey> {
        let text = text.trim_matches([' ', '\t']);
        let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let key = quoted.unwrap_or(text);
        let is_key = |key: &str| key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if key.is_empty() || key.len() > MAX_KEY || !is_key(key) {
            return Err(InvalidKey);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&Sha256::digest(key)[..16]);
        Ok(Self(short))
    }
}

/// The digest of a request: what was asked of which part of the server. JSON has the same digest however it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestDigest([u8; 32]);

impl RequestDigest {
    /// Of an operation, or a tool, with these names of what it is about.
    pub(crate) fn begin(operation: &str, names: &[&str]) -> DigestWriter {
        let mut hash = Sha256::new();
        for part in [operation].iter().chain(names) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        DigestWriter(hash)
    }
}

/// A digest of which parts are missing.
pub(crate) struct DigestWriter(Sha256);

impl DigestWriter {
    /// With a body in JSON. One that is not JSON is taken as it is.
    pub(crate) fn body(self, body: &[u8]) -> RequestDigest {
        match std::str::from_utf8(body).ok().and_then(|text| Given::parse(text).ok()) {
            Some(given) => self.json(&given),
            None => {
                let mut hash = self.0;
                hash.update([0]);
                hash.update(body);
                RequestDigest(hash.finalize().into())
            }
        }
    }

    /// With a value that writes itself as JSON, its keys in order.
    pub(crate) fn json(mut self, json: &impl Display) -> RequestDigest {
        // Writing to a digest does not fail.
        let _ = write!(self, "{json}");
        RequestDigest(self.0.finalize().into())
    }
}

impl fmt::Write for DigestWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_with_and_without_quotation_marks() {
        let key = Key::read("8e03978e-40d5").unwrap();
        assert_eq!(Key::read("\"8e03978e-40d5\"").unwrap(), key);
        assert_eq!(Key::read(" 8e03978e-40d5\t").unwrap(), key);
        assert_ne!(Key::read("8e03978e-40d6").unwrap(), key);
        let longest = "k".repeat(MAX_KEY);
        assert!(Key::read(&longest).is_ok());
        for wrong in ["", " ", "\"\"", "a\nb", "schl\u{fc}ssel", &format!("{longest}k")] {
            assert_eq!(Key::read(wrong), Err(InvalidKey), "{wrong:?}");
            assert_eq!(Key::in_header(wrong.as_bytes()), Err(InvalidKey), "{wrong:?}");
        }
        assert_eq!(Key::in_header(b"schl\xfcssel"), Err(InvalidKey));
        assert_eq!(Key::in_header(b"\"8e03978e-40d5\""), Ok(key));
    }

    #[test]
    fn a_digest_is_that_of_the_meaning() {
        let of = |operation: &str, names: &[&str], body: &str| {
            RequestDigest::begin(operation, names).body(body.as_bytes())
        };
        let one = of("run", &[], r#"{"a":1,"b":["x",{}]}"#);
        assert_eq!(of("run", &[], "{ \"b\": [\"\\u0078\", {}],\n \"a\": 1 }"), one);
        for (operation, names, body) in [
            ("run", &[][..], r#"{"a":2,"b":["x",{}]}"#),
            ("run", &[], r#"{"a":"1","b":["x",{}]}"#),
            ("run2", &[], r#"{"a":1,"b":["x",{}]}"#),
            ("run", &["s"], r#"{"a":1,"b":["x",{}]}"#),
            ("run", &[], r#"{"a":1,"b":["x",{}]"#),
        ] {
            assert_ne!(of(operation, names, body), one, "{operation} {names:?} {body}");
        }
        assert_ne!(of("ab", &["c"], "1"), of("a", &["bc"], "1"));
    }
}
