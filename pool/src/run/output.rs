//! The output of a program while it runs, and the files that it leaves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{
    self, Exit, Kind, MAX_FILES, MAX_IN_TMP, MAX_PATH, OutputLimits, WantedFiles, WireError,
};

use crate::run::outcome::{Captured, ChangedFile, Outcome, Status};

/// A stream that a program prints on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A callback for the output of a program while it runs, as far as the beginning of each stream is kept. It must not
/// block.
#[derive(Clone)]
pub struct Watch(Arc<OnOutput>);

type OnOutput = dyn Fn(Stream, &[u8]) + Send + Sync;

impl Watch {
    /// Wraps a callback.
    pub fn new(on_output: impl Fn(Stream, &[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(on_output))
    }

    /// Passes on a piece of output.
    pub fn call(&self, stream: Stream, bytes: &[u8]) {
        let Self(on_output) = self;
        on_output(stream, bytes);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// The output of a program and the files that it leaves, as they come. The runner's word on limits is not trusted: output above
/// them is lost, and more files than asked for are an error.
pub(crate) struct Output {
    limits: OutputLimits,
    has_started: bool,
    stdout: Captured,
    stderr: Captured,
    watch: Option<Watch>,
    files: Vec<ChangedFile>,
    /// Files that may still be listed, and bytes of their contents that may still come.
    files_left: usize,
    content_left: u64,
}

impl Output {
    pub(crate) fn new(
        limits: OutputLimits,
        watch: Option<Watch>,
        files: Option<&WantedFiles>,
    ) -> Self {
        Self {
            limits,
            has_started: false,
            stdout: Captured::default(),
            stderr: Captured::default(),
            watch,
            files: Vec::new(),
            files_left: files.map_or(0, |_| MAX_FILES),
            content_left: files.map_or(0, |wanted| wanted.most),
        }
    }

    /// Whether the runner said that the program has started.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Takes a frame of what a program prints and leaves.
    ///
    /// # Errors
    ///
    /// When it is not one, or more than was asked for.
    pub(crate) fn take(&mut self, kind: Kind, payload: &[u8]) -> Result<(), WireError> {
        let unexpected = WireError::Unexpected(kind);
        match kind {
            Kind::Started => self.has_started = true,
            Kind::Stdout | Kind::Stderr => self.push(kind, payload),
            Kind::File => {
                let wire::ChangedFile { path, size, sent } = wire::parse_message(kind, payload)?;
                let left = self.files_left.checked_sub(1).filter(|_| path.len() <= MAX_PATH);
                self.files_left = left.ok_or(unexpected)?;
                self.files.push(ChangedFile { path, size, content: sent.then(Vec::new) });
            }
            Kind::Content => {
                let content = self.files.last_mut().and_then(|file| file.content.as_mut());
                let left = self.content_left.checked_sub(payload.len() as u64);
                let (Some(content), Some(left)) = (content, left) else { return Err(unexpected) };
                self.content_left = left;
                content.extend_from_slice(payload);
            }
            _ => return Err(unexpected),
        }
        Ok(())
    }

    fn push(&mut self, kind: Kind, bytes: &[u8]) {
        let (name, stream) = match kind {
            Kind::Stdout => (Stream::Stdout, &mut self.stdout),
            _ => (Stream::Stderr, &mut self.stderr),
        };
        let to_head = (self.limits.head - stream.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(to_head);
        stream.head.extend_from_slice(head);
        if let Some(watch) = self.watch.as_ref().filter(|_| !head.is_empty()) {
            watch.call(name, head);
        }
        let to_tail = (self.limits.tail - stream.tail.len()).min(rest.len());
        stream.tail.extend_from_slice(&rest[..to_tail]);
    }

    /// The outcome of a program with the runner's report. The full disks are shown to the caller, so only those are kept that the
    /// runner was asked about.
    pub(crate) fn with_report(self, mut exit: Exit, disks: &[String]) -> Outcome {
        exit.full_disks.retain(|disk| disks.contains(disk));
        exit.full_disks.truncate(disks.len());
        exit.in_tmp.truncate(MAX_IN_TMP);
        let Self { mut stdout, mut stderr, files, .. } = self;
        stdout.dropped = exit.stdout.dropped;
        stderr.dropped = exit.stderr.dropped;
        Outcome {
            status: Status::of_exit(&exit),
            end: Some(exit.end),
            stdout,
            stderr,
            wall: exit.wall,
            cpu: exit.cpu,
            peak_memory: exit.peak_memory,
            oom_kills: exit.oom_kills,
            refused_forks: exit.refused_forks,
            full_disks: exit.full_disks,
            files,
            more_files: exit.more_files,
            in_tmp: exit.in_tmp,
        }
    }

    /// The outcome of a program whose runner did not report.
    pub(crate) fn without_report(self, status: Status, wall: Duration) -> Outcome {
        // If files were asked for, some may not have been listed.
        let more_files = self.files_left > 0;
        let Self { stdout, stderr, files, .. } = self;
        Outcome { stdout, stderr, wall, files, more_files, ..Outcome::of(status) }
    }
}
