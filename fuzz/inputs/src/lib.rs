//! What the fuzz targets share. None of it needs a fuzzer, so that it has tests.
//!
//! An input is just what a stranger would send: a stream of frames, or an archive. A fuzzer that changes bytes
//! would hardly get past the lengths and checksums in those, so [`mutate`] takes them apart, changes a part, and
//! puts them together again.

pub mod frames;
pub mod mutate;
pub mod scratch;
pub mod seeds;
pub mod tape;
