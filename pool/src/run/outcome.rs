//! The outcome of a program. A program's failure is data; a failure of the sandbox or the caller is an
//! error, and lives elsewhere.

use std::time::Duration;

pub use isolator_runner::wire::End;
use isolator_runner::wire::{Exit, KillReason};
use memchr::memmem;

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It exited with code 0.
    Success,
    /// It exited with another code, or died of a signal that it caused itself.
    Error,
    /// It was still running at its deadline.
    Timeout,
    /// The kernel killed it because the memory limit was reached.
    OutOfMemory,
    /// Everything in the sandbox was killed, the runner too, so its end was not seen.
    Killed,
    /// It printed more than the operator allows and was killed for it.
    OutputLimit,
}

impl Status {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Success,
        Self::Error,
        Self::Timeout,
        Self::OutOfMemory,
        Self::Killed,
        Self::OutputLimit,
    ];

    /// The name that callers see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::Killed => "killed",
            Self::OutputLimit => "output_limit",
        }
    }

    /// The status in the runner's report. A program that succeeds although a child was killed for lack of memory is a success;
    /// one that fails after that ran out of memory.
    pub(super) fn of_exit(exit: &Exit) -> Self {
        match (exit.killed, exit.end) {
            (Some(KillReason::Deadline), _) => Self::Timeout,
            (Some(KillReason::OutputLimit), _) => Self::OutputLimit,
            (Some(KillReason::Cancelled), _) => Self::Killed,
            (None, End::Code(0)) => Self::Success,
            (None, _) if exit.oom_kills > 0 => Self::OutOfMemory,
            (None, _) => Self::Error,
        }
    }
}

/// The kept parts of one output stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The stream's beginning, or all of it.
    pub head: Vec<u8>,
    /// Its end, where the middle is missing.
    pub tail: Vec<u8>,
    /// Number of bytes missing between them.
    pub dropped: u64,
}

impl Captured {
    /// Number of bytes that the program wrote.
    pub fn total(&self) -> u64 {
        (self.head.len() as u64 + self.tail.len() as u64).saturating_add(self.dropped)
    }

    /// The same with no more than `head` bytes of its beginning and `tail` bytes of its end.
    pub fn shortened(&self, head: usize, tail: usize) -> Self {
        let Self { head: begin, tail: end, dropped } = self;
        if *dropped == 0 && begin.len() + end.len() <= head + tail {
            return self.clone();
        }
        let (begin, rest) = begin.split_at(head.min(begin.len()));
        // The bytes after a gap are the end; without one the end begins where the beginning stops.
        let rest = if *dropped == 0 { [rest, end].concat() } else { end.clone() };
        let end = &rest[rest.len().saturating_sub(tail)..];
        let dropped = self.total() - (begin.len() + end.len()) as u64;
        Self { head: begin.to_vec(), tail: end.to_vec(), dropped }
    }

    /// As [`Self::to_bytes`], without a copy where nothing is missing.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.dropped > 0 {
            return self.to_bytes();
        }
        self.head.append(&mut self.tail);
        self.head
    }

    /// Head and tail in one, with a note of what is missing between them. A character cut in half
    /// by the gap counts as missing.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.dropped == 0 {
            return [self.head.as_slice(), self.tail.as_slice()].concat();
        }
        let head = without_cut_end(&self.head);
        let tail = without_cut_start(&self.tail);
        let missing = self.total() - (head.len() + tail.len()) as u64;
        let note = format!("\n[... {missing} bytes are missing here ...]\n");
        [head, note.as_bytes(), tail].concat()
    }
}

/// A UTF-8 character has at most this many continuation bytes.
const MAX_CONTINUATION: usize = 3;

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

fn without_cut_end(bytes: &[u8]) -> &[u8] {
    let continuation = bytes
        .iter()
        .rev()
        .take(MAX_CONTINUATION)
        .take_while(|byte| is_continuation(**byte))
        .count();
    let Some(at) = bytes.len().checked_sub(continuation + 1) else {
        return bytes;
    };
    let length = match bytes[at] {
        0b1100_0000..=0b1101_1111 => 2,
        0b1110_0000..=0b1110_1111 => 3,
        0b1111_0000..=0b1111_0111 => 4,
        _ => return bytes,
    };
    if continuation + 1 < length { &bytes[..at] } else { bytes }
}

fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let cut =
        bytes.iter().take(MAX_CONTINUATION).take_while(|byte| is_continuation(**byte)).count();
    &bytes[cut..]
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The status.
    pub status: Status,
    /// Its end, if that is known.
    pub end: Option<End>,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// From its start to its end.
    pub wall: Duration,
    /// User and system time.
    pub cpu: Duration,
    /// Highest memory use of the sandbox in bytes, where the kernel reports it.
    pub peak_memory: Option<u64>,
    /// Processes killed because the memory limit was reached; a program may outlive its children.
    pub oom_kills: u64,
    /// Processes and threads refused because the process limit was reached.
    pub refused_forks: u64,
    /// File systems of the sandbox that were full at the end.
    pub full_disks: Vec<String>,
    /// Files that it created or changed in the workspace, in the order of their paths, where the request
    /// wanted to know.
    pub files: Vec<ChangedFile>,
    /// Whether there are others, which are too many or could not be looked at.
    pub more_files: bool,
    /// Names of files that it left in `/tmp`, which do not come back. They are the program's choice.
    pub in_tmp: Vec<String>,
}

/// A file that the program created or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its path below the workspace. It is the program's choice: any text of up to 4096 bytes.
    pub path: String,
    /// Its size in bytes, as the runner reports.
    pub size: u64,
    /// Its content, where it was wanted and fitted. It is shorter than the size if something went on
    /// changing the file.
    pub content: Option<Vec<u8>>,
}

/// The signal by which Node.js ends itself, and what it prints then, if its heap is full. The heap is smaller than the memory, so
/// that the kernel has not killed it.
const ABORTED: End = End::Signal(6);
const HEAP_FULL: &[u8] = b"JavaScript heap out of memory";

/// Only the end of standard error is searched for it, in bytes.
const SEARCHED: usize = 16 * 1024;

/// The number of the signal that can't be caught.
const KILLED: i32 = 9;

/// The exit code after a timeout, as the command `timeout` has it.
const TIMEOUT_CODE: i32 = 124;

/// The exit code of a program that a signal ended, as shells have it, without the signal.
const SIGNAL_CODE_BASE: i32 = 128;

impl Outcome {
    /// An outcome of which only the status is known.
    pub fn of(status: Status) -> Self {
        Self {
            status,
            end: None,
            stdout: Captured::default(),
            stderr: Captured::default(),
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_memory: None,
            oom_kills: 0,
            refused_forks: 0,
            full_disks: Vec::new(),
            files: Vec::new(),
            more_files: false,
            in_tmp: Vec::new(),
        }
    }

    /// Whether it ended because memory ran out: the kernel has killed it, or the heap of Node.js was full.
    pub fn ran_out_of_memory(&self) -> bool {
        self.status == Status::OutOfMemory || self.has_full_heap()
    }

    /// Whether it says that the heap of Node.js was full.
    pub fn has_full_heap(&self) -> bool {
        if self.end != Some(ABORTED) {
            return false;
        }
        let printed = self.stderr.shortened(0, SEARCHED).to_bytes();
        memmem::find(&printed, HEAP_FULL).is_some()
    }

    /// The signal that ended it. Where everything was killed, that was the one that can't be caught.
    pub fn signal(&self) -> Option<i32> {
        match self.end {
            Some(End::Code(_)) => None,
            Some(End::Signal(signal)) => Some(signal),
            None => Some(KILLED),
        }
    }

    /// The exit code that a shell would report: 124 after a timeout, 128 and the number of the signal that
    /// ended it. Where everything was killed, that was the one that can't be caught.
    pub fn shell_code(&self) -> i32 {
        match (self.status, self.end) {
            (Status::Timeout, _) => TIMEOUT_CODE,
            (_, Some(End::Code(code))) => code,
            (_, Some(End::Signal(signal))) => SIGNAL_CODE_BASE + signal,
            (_, None) => SIGNAL_CODE_BASE + KILLED,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_gap_shows_how_much_is_missing() {
        let captured = Captured { head: b"ab".to_vec(), tail: b"yz".to_vec(), dropped: 22 };
        assert_eq!(captured.to_bytes(), b"ab\n[... 22 bytes are missing here ...]\nyz");
        assert_eq!(captured.total(), 26);
    }

    #[test]
    fn a_character_on_the_gap_s_edge_is_missing_as_a_whole() {
        let head = "a€".as_bytes()[..3].to_vec();
        let tail = "€b".as_bytes()[1..].to_vec();
        let captured = Captured { head, tail, dropped: 10 };
        assert_eq!(captured.to_bytes(), b"a\n[... 14 bytes are missing here ...]\nb");
    }

    #[test]
    fn a_shortened_stream_keeps_both_its_ends() {
        let whole = Captured { head: b"abcdefgh".to_vec(), tail: Vec::new(), dropped: 0 };
        assert_eq!(whole.shortened(5, 3), whole);
        let short = Captured { head: b"ab".to_vec(), tail: b"fgh".to_vec(), dropped: 3 };
        assert_eq!(whole.shortened(2, 3), short);
        let gap = Captured { head: b"abcd".to_vec(), tail: b"wxyz".to_vec(), dropped: 100 };
        let short = Captured { head: b"ab".to_vec(), tail: b"xyz".to_vec(), dropped: 103 };
        assert_eq!(gap.shortened(2, 3), short);
        assert_eq!(gap.shortened(2, 3).total(), gap.total());
    }

    proptest! {
        #[test]
        fn no_cut_of_a_text_leaves_half_a_character(text in "\\PC{0,20}", at in 0_usize..60) {
            let at = at.min(text.len());
            prop_assert!(std::str::from_utf8(without_cut_end(&text.as_bytes()[..at])).is_ok());
            prop_assert!(std::str::from_utf8(without_cut_start(&text.as_bytes()[at..])).is_ok());
        }

        #[test]
        fn any_bytes_can_be_cut(bytes in prop::collection::vec(any::<u8>(), 0..8)) {
            prop_assert!(without_cut_end(&bytes).len() + 4 > bytes.len());
            prop_assert!(without_cut_start(&bytes).len() + 4 > bytes.len());
        }
    }
}
