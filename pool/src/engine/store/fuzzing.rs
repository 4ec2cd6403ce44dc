//! The functions of the store that a fuzzer calls.

use std::path::Path;

use super::Store;
use super::blocking_job::BlockingJob;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::limits::Limits;
use super::tree::Root;
use super::unpack::Unpacker;
use crate::folders;

/// Unpacks layers, one over the other, into a directory that is empty. Returns the size of the files. What
/// the digests of the layers should be, is not known.
///
/// # Errors
///
/// As of [`Store::import`].
pub fn unpack(directory: &Path, layers: &[Vec<u8>], limits: Limits) -> Result<u64, StoreError> {
    let store = Store::new("").with_limits(limits);
    let root = Root::open(directory).at("open", directory)?;
    let job = BlockingJob::silent();
    let mut unpacker = Unpacker::new(&root, limits, &job);
    for layer in layers {
        let of_nothing = Digest::of(b"");
        match store.unpack(&mut unpacker, "a layer", layer.as_slice(), None, &of_nothing) {
            // It is checked when all of the layer is there.
            Ok(()) | Err(StoreError::Digest { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    unpacker.finish()
}

/// Removes a directory, as the store does, whatever is in it.
///
/// # Errors
///
/// [`StoreError::Io`].
pub fn clear(directory: &Path) -> Result<u64, StoreError> {
    folders::remove(directory).at("remove", directory)
}
