//! Code that the fuzz targets share. None of it needs a fuzzer, so it can have tests.
//!
//! An input is what a stranger would send: a stream of frames, or an archive. A fuzzer that changes single bytes would
//! hardly get past the lengths and checksums. So [`mutate`] splits the input into its parts, changes a part, and joins
//! them again.

pub mod frames;
pub mod mutate;
pub mod scratch;
pub mod seeds;
pub mod tape;
