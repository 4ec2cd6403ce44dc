//! The seal of a set: a node that has the key of the nodes takes only sets that another one with it has built. It tells sets of other
//! keys apart. It is no wall against a process that writes to the volume while a node builds there, or after a set was verified.

use std::fs;
use std::io;
use std::path::Path;

use ring::hmac;

use super::{AtPath as _, NOT_PLAIN, StoreError, read_plain};
use crate::hex::{hex, unhex};
use crate::nodes_key::{self, KeyError};

/// The file of a set with the seal of its `set.json`, which has the hash of all that is in the set.
pub(super) const SEAL: &str = "seal";

/// Bytes of a seal's file at most.
const MAX_BYTES: u64 = 128;

/// A key that all nodes have.
#[derive(Debug, Clone)]
pub(crate) struct StoreKey(hmac::Key);

impl StoreKey {
    /// Reads it from a file.
    pub(crate) fn read(path: &Path) -> Result<Self, KeyError> {
        Ok(Self::from_bytes(&nodes_key::read(path, "packages.store.keyFile")?))
    }

    pub(super) fn from_bytes(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Writes the seal of a `set.json` with this content into the folder of its set.
    pub(super) fn seal(&self, folder: &Path, content: &[u8]) -> Result<(), StoreError> {
        let path = folder.join(SEAL);
        fs::write(&path, hex(hmac::sign(&self.0, content).as_ref())).at(&path)
    }

    /// Whether the folder has the seal of a `set.json` with this content.
    pub(super) fn is_sealed(&self, folder: &Path, content: &[u8]) -> Result<bool, StoreError> {
        let path = folder.join(SEAL);
        match read_plain(&path, MAX_BYTES) {
            Ok(text) => {
                let seal = std::str::from_utf8(&text).ok().and_then(unhex);
                Ok(seal.is_some_and(|seal| hmac::verify(&self.0, content, &seal).is_ok()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) if NOT_PLAIN.contains(&error.kind()) => Ok(false),
            Err(error) => Err(StoreError::io(&path, error)),
        }
    }
}
