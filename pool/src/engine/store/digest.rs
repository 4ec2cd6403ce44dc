//! SHA-256 digests of streams and of bytes.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

use super::error::StoreError;

/// The digest of some content. Only SHA-256 is supported.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine) struct Digest(String);

const ALGORITHM: &str = "sha256:";

impl Digest {
    /// Reads `sha256:…`.
    pub(super) fn parse(digest: &str) -> Option<Self> {
        let hex = digest.strip_prefix(ALGORITHM)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(is_hex)).then(|| Self(digest.to_owned()))
    }

    /// The digest of some bytes.
    pub(in crate::engine) fn of(bytes: &[u8]) -> Self {
        Self::from_hash(&Sha256::digest(bytes))
    }

    /// A digest that grows with each addition.
    #[cfg(not(fuzzing))]
    pub(super) fn start() -> Growing {
        Growing(Sha256::new())
    }

    fn from_hash(hash: &[u8]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{ALGORITHM}{hex}"))
    }

    /// The digest without its algorithm, for use as a file name.
    pub(in crate::engine) fn hex(&self) -> &str {
        &self.0[ALGORITHM.len()..]
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks that a digest is the expected one.
    pub(super) fn expect(&self, what: &str, expected: &Self) -> Result<(), StoreError> {
        if self == expected {
            return Ok(());
        }
        Err(StoreError::Digest {
            what: what.to_owned(),
            expected: expected.0.clone(),
            found: self.0.clone(),
        })
    }
}

/// The digest of content that is still arriving.
#[cfg(not(fuzzing))]
pub(super) struct Growing(Sha256);

#[cfg(not(fuzzing))]
impl Growing {
    pub(super) fn add(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    pub(super) fn finish(self) -> Digest {
        Digest::from_hash(&self.0.finalize())
    }
}

/// A reader that computes the digest of everything read through it.
pub(super) struct Hashing<R> {
    reader: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, hash: Sha256::new() }
    }

    /// Reads the rest, and returns the digest of everything.
    pub(super) fn finish(mut self) -> io::Result<(Digest, R)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::from_hash(&self.hash.finalize()), self.reader))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

/// Computes the digest of a sequence of fields, each with its length, so that no two sequences give the same bytes.
#[derive(Default)]
pub(super) struct Fields(Sha256);

impl Fields {
    pub(super) fn add(&mut self, field: &[u8]) {
        self.0.update((field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    pub(super) fn add_number(&mut self, field: u64) {
        self.add(&field.to_le_bytes());
    }

    pub(super) fn finish(self) -> Digest {
        Digest::from_hash(&self.0.finalize())
    }
}
