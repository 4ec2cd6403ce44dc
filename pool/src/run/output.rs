//! The output of a program while it runs, and the files that it leaves.

use std::fmt;
use std::sync::Arc;

use isolator_runner::wire::{
    self, Kind, MAX_FILES, MAX_PATH, OutputLimits, WantedFiles, WireError,
};

use crate::run::outcome::{Captured, ChangedFile};

/// A stream that a program prints on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A callback for what a program prints while it runs, as far as the beginning of each stream is kept. It must not
/// block.
#[derive(Clone)]
pub struct Watch(Arc<OnOutput>);

type OnOutput = dyn Fn(Stream, &[u8]) + Send + Sync;

impl Watch {
    /// Wraps a callback.
    pub fn new(on_output: impl Fn(Stream, &[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(on_output))
    }

    /// Passes on what a program has printed.
    pub fn tell(&self, stream: Stream, bytes: &[u8]) {
        let Self(on_output) = self;
        on_output(stream, bytes);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// What the program prints and leaves, as it comes. The runner's word on limits is not trusted: output above
/// them is lost, and more files than asked for are an error.
pub(crate) struct Output {
    limits: OutputLimits,
    /// Whether the runner said that the program has started.
    pub(crate) started: bool,
    /// Memory that the program's interpreter held before, as the runner said when no other was left.
    pub(crate) alone: Option<u64>,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    watch: Option<Watch>,
    pub(crate) files: Vec<ChangedFile>,
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
            started: false,
            alone: None,
            stdout: Captured::default(),
            stderr: Captured::default(),
            watch,
            files: Vec::new(),
            files_left: files.map_or(0, |_| MAX_FILES),
            content_left: files.map_or(0, |wanted| wanted.most),
        }
    }

    /// Whether files were asked for and not all that may be listed were.
    pub(crate) fn may_have_more_files(&self) -> bool {
        self.files_left > 0
    }

    /// Takes the name of a file, or more of its content; `None` if it was not expected.
    pub(crate) fn take_file(
        &mut self,
        kind: Kind,
        payload: &[u8],
    ) -> Result<Option<()>, WireError> {
        if kind == Kind::File {
            let wire::ChangedFile { path, size, sent } = wire::parse_message(kind, payload)?;
            let left = self.files_left.checked_sub(1).filter(|_| path.len() <= MAX_PATH);
            let Some(left) = left else { return Ok(None) };
            self.files_left = left;
            self.files.push(ChangedFile { path, size, content: sent.then(Vec::new) });
            return Ok(Some(()));
        }
        let content = self.files.last_mut().and_then(|file| file.content.as_mut());
        let left = self.content_left.checked_sub(payload.len() as u64);
        let (Some(content), Some(left)) = (content, left) else { return Ok(None) };
        self.content_left = left;
        content.extend_from_slice(payload);
        Ok(Some(()))
    }

    pub(crate) fn push(&mut self, kind: Kind, bytes: &[u8]) {
        let (name, stream) = match kind {
            Kind::Stdout => (Stream::Stdout, &mut self.stdout),
            _ => (Stream::Stderr, &mut self.stderr),
        };
        let to_head = (self.limits.head - stream.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(to_head);
        stream.head.extend_from_slice(head);
        if let Some(watch) = self.watch.as_ref().filter(|_| !head.is_empty()) {
            watch.tell(name, head);
        }
        let to_tail = (self.limits.tail - stream.tail.len()).min(rest.len());
        stream.tail.extend_from_slice(&rest[..to_tail]);
    }
}
