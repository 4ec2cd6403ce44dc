//! Inputs that begin with some bytes which choose what happens. Behind them is a stream.

use isolator_fuzz_inputs::seeds::KNOBS;

use crate::fuzzer;

/// Changes the stream of an input as a mutator of streams does, and now and then the whole input at random. Returns the new size.
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    if size <= KNOBS || seed % 16 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let stream = &mut data[KNOBS..];
    let most = max_size - KNOBS.min(max_size);
    KNOBS
        + fuzzer::mutate(stream, size - KNOBS, most, seed, |mutator, stream| mutator.stream(stream))
}
