//! Connects the mutators to the fuzzer.

use isolator_fuzz_inputs::mutate::Mutator;

/// Changes an input of `size` bytes, which may grow to `most` bytes. Returns its new size.
pub(crate) fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    change: impl FnOnce(&mut Mutator<'_>, &[u8]) -> Vec<u8>,
) -> usize {
    let mut blind = |bytes: &[u8], most: usize| {
        let mut buffer = bytes.to_vec();
        buffer.resize(most.max(bytes.len()), 0);
        let length = libfuzzer_sys::fuzzer_mutate(&mut buffer, bytes.len(), most);
        buffer.truncate(length);
        buffer
    };
    let changed = change(&mut Mutator::new(seed, most, &mut blind), &data[..size]);
    let length = changed.len().min(most);
    data[..length].copy_from_slice(&changed[..length]);
    length
}
