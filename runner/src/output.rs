//! Keeps the head and the tail of a stream that may be endless, and counts what is between them.

use std::collections::VecDeque;

use isolator_runner::wire::StreamCount;

/// Keeps the first `head` and the last `tail` bytes of a stream in bounded memory.
pub(crate) struct Keeper {
    head: usize,
    tail: usize,
    total: u64,
    last: VecDeque<u8>,
    /// What was kept of the head, for those who do not send it at once.
    first: Vec<u8>,
}

impl Keeper {
    pub(crate) fn new(head: usize, tail: usize) -> Self {
        Self { head, tail, total: 0, last: VecDeque::new(), first: Vec::new() }
    }

    /// Takes the next bytes, and keeps those of the head, too.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        let now = self.push(bytes).len();
        self.first.extend_from_slice(&bytes[..now]);
    }

    /// All that was kept, with a line where something is missing, and how many bytes are.
    pub(crate) fn into_kept(mut self) -> (Vec<u8>, u64) {
        let mut kept = std::mem::take(&mut self.first);
        let (last, count) = self.finish();
        if count.dropped > 0 {
            kept.extend_from_slice(b"\n...\n");
        }
        kept.extend_from_slice(&last);
        (kept, count.dropped)
    }

    /// Takes the next bytes; returns those that belong to the head and can be sent at once.
    pub(crate) fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let room = self.head.saturating_sub(usize::try_from(self.total).unwrap_or(usize::MAX));
        self.total += bytes.len() as u64;
        let (now, later) = bytes.split_at(room.min(bytes.len()));
        let later = &later[later.len().saturating_sub(self.tail)..];
        let excess = (self.last.len() + later.len()).saturating_sub(self.tail);
        self.last.drain(..excess);
        self.last.extend(later);
        now
    }

    /// Total bytes of the stream so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The tail, and the stream's count.
    pub(crate) fn finish(self) -> (Vec<u8>, StreamCount) {
        let sent = self.total.min(self.head as u64);
        let dropped = self.total - sent - self.last.len() as u64;
        (self.last.into(), StreamCount { total: self.total, dropped })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_stream_is_all_head() {
        let mut keeper = Keeper::new(8, 4);
        assert_eq!(keeper.push(b"hello"), b"hello");
        assert_eq!(keeper.finish(), (vec![], StreamCount { total: 5, dropped: 0 }));
    }

    #[test]
    fn the_middle_of_a_long_stream_is_dropped_and_counted() {
        let mut keeper = Keeper::new(2, 3);
        assert_eq!(keeper.push(b"abcdefghij"), b"ab");
        assert_eq!(keeper.finish(), (b"hij".to_vec(), StreamCount { total: 10, dropped: 5 }));
    }

    proptest! {
        #[test]
        fn head_dropped_and_tail_are_the_whole_stream(
            stream in prop::collection::vec(any::<u8>(), 0..400),
            cut in 1_usize..50,
            head in 0_usize..100,
            tail in 0_usize..100,
        ) {
            let mut keeper = Keeper::new(head, tail);
            let mut sent = Vec::new();
            for piece in stream.chunks(cut) {
                sent.extend_from_slice(keeper.push(piece));
            }
            let (last, count) = keeper.finish();
            prop_assert_eq!(count.total, stream.len() as u64);
            prop_assert_eq!(sent.len() as u64 + count.dropped + last.len() as u64, count.total);
            prop_assert_eq!(&sent[..], &stream[..sent.len()]);
            prop_assert_eq!(&last[..], &stream[stream.len() - last.len()..]);
            prop_assert!(count.dropped == 0 || (sent.len() == head && last.len() == tail));
        }
    }
}
