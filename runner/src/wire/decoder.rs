//! Frames of a stream that does not block.

use super::{HEADER_LEN, Kind, WireError, parse_header};

/// Cuts frames out of a stream that arrives in pieces of any size.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameDecoder {
    /// Takes the next piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    ///
    /// # Errors
    ///
    /// As [`parse_header`]. The stream is of no use after an error.
    pub fn next_frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        let rest = &self.buffer[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (kind, len) = parse_header(*head)?;
        let Some(payload) = rest.get(..len) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.start += HEADER_LEN + len;
        Ok(Some((kind, payload)))
    }
}
