//! Splits streams into frames, and joins frames to streams.

use isolator_runner::wire::{HEADER_LEN, MAX_PAYLOAD};

/// A frame: the byte of its kind, which may be invalid, and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The first byte.
    pub kind: u8,
    /// The bytes after the length.
    pub payload: Vec<u8>,
}

/// Splits a stream. Returns the frames, and what follows the last complete frame.
pub fn split(mut stream: &[u8]) -> (Vec<Frame>, &[u8]) {
    let mut frames = Vec::new();
    while let Some((head, rest)) = stream.split_first_chunk::<HEADER_LEN>() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push(Frame { kind: head[0], payload: payload.to_vec() });
        stream = rest;
    }
    (frames, stream)
}

/// Joins frames to a stream, followed by `rest`.
pub fn join(frames: &[Frame], rest: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for Frame { kind, payload } in frames {
        let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
        stream.push(*kind);
        stream.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        stream.extend_from_slice(payload);
    }
    stream.extend_from_slice(rest);
    stream
}
