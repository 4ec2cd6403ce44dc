//! The messages between server and checker: a length in four bytes, little endian, and as many bytes of JSON. The
//! contents of files follow a request as they are.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest message of a server: policies, each of which has at most a mebibyte, or the names of a request's files.
const MAX_OF_SERVER: u32 = 64 << 20;

/// Longest message of a checker: a few violations, each of which names a file.
pub(super) const MAX_OF_CHECKER: u32 = 1 << 20;

/// The first message: all policies, by language.
#[derive(Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) languages: Vec<(String, LanguagePolicies)>,
}

/// The policies of a language.
#[derive(Serialize, Deserialize)]
pub(super) struct LanguagePolicies {
    /// The language's extensions with their dots, the usual one first.
    pub(super) extensions: Vec<String>,
    /// Each policy as it is in its file.
    pub(super) texts: Vec<String>,
}

/// The files of a program. Their contents follow.
#[derive(Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) language: String,
    pub(super) files: Vec<RequestFile>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RequestFile {
    pub(super) name: String,
    pub(super) is_entrypoint: bool,
    /// Bytes of its content.
    pub(super) length: usize,
}

/// A message with its length before it.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - size_of::<u32>()).map_err(io::Error::other)?;
    bytes[..size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// Reads a message of the server; `None` if there are no more.
pub(super) fn receive<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; size_of::<u32>()];
    if input.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length);
    if length > MAX_OF_SERVER {
        return Err(io::Error::other("a message is too long"));
    }
    Ok(Some(serde_json::from_slice(&receive_bytes(input, length as usize)?)?))
}

/// Reads that many bytes.
pub(super) fn receive_bytes(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Sends a message to the server.
pub(super) fn send(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    output.write_all(&encode(message)?)?;
    output.flush()
}
