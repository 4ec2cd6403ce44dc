//! The output of a program that is still running, for a caller that waits for its result.

use std::collections::VecDeque;
use std::sync::Mutex;

use isolator_pool::lock::lock;
use isolator_pool::run::outcome::Captured;
use isolator_pool::run::output::Stream;

/// Bytes that are kept of the end of each stream. A program that is cancelled has no other result.
const KEPT: usize = 32 * 1024;

/// Bytes of it that are shown while the program runs. Its result has all.
const SHOWN: usize = 2048;

/// The end of what a program has printed so far.
#[derive(Debug, Default)]
pub(crate) struct SoFar {
    stdout: Mutex<StreamEnd>,
    stderr: Mutex<StreamEnd>,
    step: Mutex<Option<String>>,
}

/// The end of a stream.
#[derive(Debug, Default)]
struct StreamEnd {
    bytes: VecDeque<u8>,
    /// Bytes before them.
    before: u64,
}

impl SoFar {
    /// Notes the step before the program can start; an empty text when it can.
    pub(crate) fn begin_step(&self, step: &str) {
        *lock(&self.step) = Some(step.to_owned()).filter(|step| !step.is_empty());
    }

    /// The step before the program can start.
    pub(crate) fn step(&self) -> Option<String> {
        lock(&self.step).clone()
    }

    /// Adds output.
    pub(crate) fn add(&self, stream: Stream, bytes: &[u8]) {
        let mut end = lock(self.of(stream));
        let last = &bytes[bytes.len().saturating_sub(KEPT)..];
        let too_many = (end.bytes.len() + last.len()).saturating_sub(KEPT);
        end.bytes.drain(..too_many);
        end.bytes.extend(last);
        end.before += (bytes.len() - last.len() + too_many) as u64;
    }

    /// The end of standard output and of standard error, to show its progress.
    pub(crate) fn ends(&self) -> [Captured; 2] {
        self.all().map(|stream| stream.shortened(0, SHOWN))
    }

    /// All that is kept of standard output and of standard error.
    pub(crate) fn all(&self) -> [Captured; 2] {
        [Stream::Stdout, Stream::Stderr].map(|stream| {
            let end = lock(self.of(stream));
            let tail = end.bytes.iter().copied().collect();
            Captured { head: Vec::new(), tail, dropped: end.before }
        })
    }

    fn of(&self, stream: Stream) -> &Mutex<StreamEnd> {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }
}
