//! Compression of messages and files, a piece at a time, so that no piece of input becomes more than a bounded piece of output.

use std::io::{self, Read as _, Write as _};

use axum::body::Bytes;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write;

/// Input that is decompressed at once. A byte becomes up to 1032, so this becomes a megabyte.
const PIECE: usize = 1024;

/// Compresses a message.
pub(super) fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder =
        write::GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // A vector takes everything.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Decompresses a message, and at most `most` bytes and one more of it.
///
/// # Errors
///
/// When it is damaged, or ends too early.
pub(super) fn decompressed(bytes: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    MultiGzDecoder::new(bytes).take(most as u64 + 1).read_to_end(&mut whole)?;
    Ok(whole)
}

/// Compresses a file as it is read.
pub(super) struct Compressing(write::GzEncoder<Vec<u8>>);

impl Compressing {
    pub(super) fn new() -> Self {
        Self(write::GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Takes a piece, and returns the output that is ready.
    pub(super) fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.0.write_all(piece)?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }

    /// The rest of the output.
    pub(super) fn finish(self) -> io::Result<Bytes> {
        self.0.finish().map(Bytes::from)
    }
}

/// Decompresses a file as it is received.
pub(super) struct Decompressing {
    decoder: write::MultiGzDecoder<Vec<u8>>,
    /// Input that is not decompressed yet.
    input: Bytes,
}

impl Decompressing {
    pub(super) fn new() -> Self {
        Self { decoder: write::MultiGzDecoder::new(Vec::new()), input: Bytes::new() }
    }

    /// Takes a piece. [`next`](Self::next) has to return `None` before that.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.input = piece;
    }

    /// The output of the next part of the input; `None` if all input was decompressed.
    pub(super) fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.input.is_empty() {
            let part = self.input.split_to(self.input.len().min(PIECE));
            if let Err(error) = self.decoder.write_all(&part) {
                return Some(Err(error));
            }
            let output = std::mem::take(self.decoder.get_mut());
            if !output.is_empty() {
                return Some(Ok(output.into()));
            }
        }
        None
    }

    /// The rest of the output.
    ///
    /// # Errors
    ///
    /// When the input ended too early.
    pub(super) fn finish(self) -> io::Result<Bytes> {
        self.decoder.finish().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decompress(pieces: &[&[u8]]) -> io::Result<(Vec<u8>, usize)> {
        let mut decompressing = Decompressing::new();
        let (mut whole, mut longest) = (Vec::new(), 0);
        for piece in pieces {
            decompressing.push(Bytes::copy_from_slice(piece));
            while let Some(output) = decompressing.next() {
                let output = output?;
                longest = longest.max(output.len());
                whole.extend_from_slice(&output);
            }
        }
        let rest = decompressing.finish()?;
        whole.extend_from_slice(&rest);
        Ok((whole, longest.max(rest.len())))
    }

    #[test]
    fn a_file_is_the_same_after_it_was_compressed_and_decompressed_in_pieces() {
        let file: Vec<u8> = (0..300_000_u32).map(|at| ((at * at) >> 7) as u8).collect();
        let mut compressing = Compressing::new();
        let mut sent: Vec<u8> = Vec::new();
        for piece in file.chunks(7_001) {
            sent.extend_from_slice(&compressing.push(piece).unwrap());
        }
        sent.extend_from_slice(&compressing.finish().unwrap());
        let pieces: Vec<&[u8]> = sent.chunks(311).collect();
        assert_eq!(decompress(&pieces).unwrap().0, file);
        assert_eq!(decompressed(&sent, file.len()).unwrap(), file);
        assert_eq!(decompress(&[&compressed(b"")]).unwrap().0, b"");
        // Several members make one file.
        let two = [compressed(b"one "), compressed(b"two")].concat();
        assert_eq!(decompress(&[&two]).unwrap().0, b"one two");
    }

    #[test]
    fn a_small_input_never_becomes_a_large_piece() {
        let bomb = compressed(&vec![0; 64 << 20]);
        let (whole, longest) = decompress(&[&bomb]).unwrap();
        assert!(whole.len() == 64 << 20 && longest <= 2 << 20, "{longest}");
        assert_eq!(decompressed(&bomb, 1000).unwrap().len(), 1001);
    }

    #[test]
    fn damaged_and_short_input_is_an_error() {
        let whole = compressed(b"some bytes that are long enough");
        for wrong in [&whole[..whole.len() - 1], &whole[..10], b"no gzip at all", &[]] {
            assert!(decompress(&[wrong]).is_err(), "{wrong:?}");
            assert!(decompressed(wrong, 1000).is_err(), "{wrong:?}");
        }
        let mut damaged = whole;
        damaged[15] ^= 0xff;
        assert!(decompress(&[&damaged]).is_err());
    }
}
