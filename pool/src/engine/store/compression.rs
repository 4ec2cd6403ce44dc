//! Plain, gzip and zstd data, recognized by its first bytes, because a manifest may be wrong.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// How something is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognizes it by the first bytes.
    pub(super) fn of(start: &[u8]) -> Self {
        if start.starts_with(GZIP) {
            Self::Gzip
        } else if start.starts_with(ZSTD) {
            Self::Zstd
        } else {
            Self::Plain
        }
    }
}

/// Reads the decompressed content, which may be no more than `most` bytes.
pub(super) enum Decompressed<R: Read> {
    Plain(Bounded<Start<R>>),
    Gzip(Bounded<MultiGzDecoder<BufReader<Start<R>>>>),
    Zstd(Bounded<zstd::Decoder<'static, BufReader<Start<R>>>>),
}

type Start<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

impl<R: Read> Decompressed<R> {
    pub(super) fn new(mut reader: R, most: u64) -> io::Result<Self> {
        let mut start = Vec::new();
        reader.by_ref().take(ZSTD.len() as u64).read_to_end(&mut start)?;
        let compression = Compression::of(&start);
        let reader = io::Cursor::new(start).chain(reader);
        Ok(match compression {
            Compression::Plain => Self::Plain(Bounded::new(reader, most)),
            Compression::Gzip => {
                let reader = MultiGzDecoder::new(BufReader::with_capacity(BUFFER, reader));
                Self::Gzip(Bounded::new(reader, most))
            }
            Compression::Zstd => {
                let reader = BufReader::with_capacity(BUFFER, reader);
                Self::Zstd(Bounded::new(zstd::Decoder::with_buffer(reader)?, most))
            }
        })
    }

    /// The reader of the compressed data.
    pub(super) fn into_inner(self) -> R {
        match self {
            Self::Plain(plain) => plain.reader.into_inner().1,
            Self::Gzip(gzip) => gzip.reader.into_inner().into_inner().into_inner().1,
            Self::Zstd(zstd) => zstd.reader.finish().into_inner().into_inner().1,
        }
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.read(buffer),
            Self::Gzip(gzip) => gzip.read(buffer),
            Self::Zstd(zstd) => zstd.read(buffer),
        }
    }
}

/// Size of the buffer for compressed data, in bytes.
const BUFFER: usize = 64 * 1024;

/// Reads a limited number of bytes and fails if there are more.
pub(super) struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R> Bounded<R> {
    /// Reads at most `most` bytes of `reader`.
    pub(super) fn new(reader: R, most: u64) -> Self {
        Self { reader, left: most }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "it is larger than an image may be")
        })?;
        Ok(read)
    }
}
