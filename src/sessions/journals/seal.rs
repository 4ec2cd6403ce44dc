//! Seals journals, so that the server that keeps them can neither read nor change them, and gives none to another client.
//!
//! Each session has a key of its own, which follows from the key of the nodes, the name of the client and the handle. So does the
//! name under which its journal is kept. A record can't be opened at another place of the journal, nor in another journal.

use isolator_pool::pool::admission::Client;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use crate::hex::hex;
use crate::node::{NodeName, node_of};

/// The beginning of the names of all journals on the server.
const NAMES: &str = "isolator:journal:";

/// The beginning of the names of a node's journals, by which it finds them when it was started again.
pub(super) fn names_of(node: &NodeName) -> String {
    format!("{NAMES}{node}:")
}

/// The first byte of a record: the version of its form.
const VERSION: u8 = 1;

/// Bytes that all records of one writing of a journal have in common.
pub(super) const GENERATION_LEN: usize = 8;

/// Bytes of a record before its sealed content.
const HEAD: usize = 1 + GENERATION_LEN + NONCE_LEN;

/// Why a record can't be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SealError {
    #[error("the kernel returned no random bytes")]
    Random,
    #[error("the record could not be sealed")]
    Seal,
    /// It was changed, belongs to another place, or was made with another key.
    #[error("a record of the journal is damaged, or was sealed with another key")]
    NotOurs,
}

/// The key of all nodes.
pub(super) struct NodesKey(Prk);

impl NodesKey {
    /// The key with these bytes.
    pub(super) fn from_bytes(key: &[u8]) -> Self {
        Self(Salt::new(HKDF_SHA256, b"isolator journals 1").extract(key))
    }

    /// The key of a client's session. `None` if the names are longer than any that are given out.
    pub(super) fn of_session(&self, client: &Client, handle: &str) -> Option<SessionKey> {
        let client = client.to_string();
        let length = u16::try_from(client.len()).ok()?.to_be_bytes();
        let derive = |purpose: &'static [u8]| {
            [purpose, length.as_slice(), client.as_bytes(), handle.as_bytes()].concat()
        };
        let (sealing, naming) = (derive(b"seal"), derive(b"name"));
        let key: UnboundKey = self.0.expand(&[&sealing], &CHACHA20_POLY1305).ok()?.into();
        let mut name = [0; 32];
        self.0.expand(&[&naming], HKDF_SHA256).ok()?.fill(&mut name).ok()?;
        let names = node_of(handle).map_or_else(|| NAMES.to_owned(), |node| names_of(&node));
        let name = format!("{names}{}", hex(&name));
        Some(SessionKey { name, key: LessSafeKey::new(key) })
    }
}

/// The key of a session.
pub(super) struct SessionKey {
    /// The name of its journal on the server. It tells nothing of the client, and of the handle only the node.
    pub(super) name: String,
    key: LessSafeKey,
}

impl SessionKey {
    /// Seals the record at this place of a writing.
    pub(super) fn seal(
        &self,
        generation: [u8; GENERATION_LEN],
        at: u32,
        mut content: Vec<u8>,
    ) -> Result<Vec<u8>, SealError> {
        // Few enough records are sealed with the key of one session for random numbers to be different.
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Random)?;
        let aad = Aad::from(self.place(generation, at));
        let once = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(once, aad, &mut content).map_err(|_| SealError::Seal)?;
        let mut record = Vec::with_capacity(HEAD + content.len());
        record.push(VERSION);
        record.extend(generation);
        record.extend(nonce);
        record.append(&mut content);
        Ok(record)
    }

    /// Opens the record at this place. The first one says of which writing the others must be.
    pub(super) fn open(
        &self,
        expected: Option<[u8; GENERATION_LEN]>,
        at: u32,
        mut record: Vec<u8>,
    ) -> Result<([u8; GENERATION_LEN], Vec<u8>), SealError> {
        let (head, _) = record.split_first_chunk::<HEAD>().ok_or(SealError::NotOurs)?;
        let (version, rest) = head.split_at(1);
        let (generation, nonce) =
            rest.split_first_chunk::<GENERATION_LEN>().ok_or(SealError::NotOurs)?;
        if version != [VERSION] || expected.is_some_and(|expected| expected != *generation) {
            return Err(SealError::NotOurs);
        }
        let generation = *generation;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::NotOurs)?;
        let aad = Aad::from(self.place(generation, at));
        let opened = self.key.open_within(nonce, aad, &mut record, HEAD..);
        let length = opened.map_err(|_| SealError::NotOurs)?.len();
        record.truncate(length);
        Ok((generation, record))
    }

    fn place(&self, generation: [u8; GENERATION_LEN], at: u32) -> Vec<u8> {
        [&[VERSION], generation.as_slice(), &at.to_be_bytes(), self.name.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: u8, client: &str, handle: &str) -> SessionKey {
        NodesKey::from_bytes(&[secret; 32]).of_session(&Client::named(client), handle).unwrap()
    }

    #[test]
    fn a_record_opens_only_for_its_client_its_session_and_its_place() {
        let own = key(1, "one", "n1-ab");
        let record = own.seal([7; 8], 3, b"cells".to_vec()).unwrap();
        assert!(!record.windows(5).any(|part| part == b"cells"));
        assert_eq!(own.open(None, 3, record.clone()), Ok(([7; 8], b"cells".to_vec())));
        assert_eq!(own.open(Some([7; 8]), 3, record.clone()), Ok(([7; 8], b"cells".to_vec())));
        let no = Err(SealError::NotOurs);
        assert_eq!(own.open(Some([8; 8]), 3, record.clone()), no);
        assert_eq!(own.open(None, 2, record.clone()), no);
        for other in [key(2, "one", "n1-ab"), key(1, "two", "n1-ab"), key(1, "one", "n1-ac")] {
            assert_ne!(other.name, own.name);
            assert_eq!(other.open(None, 3, record.clone()), no);
        }
        // The node can find its own journals, and nothing else is in their names.
        let handle = format!("n1-{}", "ab".repeat(16));
        let named = key(1, "one", &handle).name;
        let digits = named.strip_prefix(&names_of(&"n1".parse().unwrap())).unwrap();
        assert!(digits.len() == 64 && !digits.contains("abab"), "{named}");
        // The name of a client and the handle are kept apart.
        assert_ne!(key(1, "one", "n1").name, key(1, "onen", "1").name);
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert_eq!(own.open(None, 3, changed), no, "byte {at}");
            assert_eq!(own.open(None, 3, record[..at].to_vec()), no, "{at} bytes");
        }
    }
}
