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

/// A short identifier of a secret that does not reveal it: the beginning of its SHA-256.
pub(crate) fn short_digest(secret: &str) -> String {
    hex(&Sha256::digest(secret)[..8])
}
