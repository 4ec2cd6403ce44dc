//! Bytes as hexadecimal digits, and digests in them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Two digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a text with two digits for each, and nothing else.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// A short identifier of a secret that does not reveal it: the beginning of its SHA-256.
pub(crate) fn short_digest(secret: &str) -> String {
    hex(&Sha256::digest(secret)[..8])
}
