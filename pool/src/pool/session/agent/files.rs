//! Files of a session's sandbox, in the workspace or not.

use bytes::Bytes;
use isolator_runner::wire::agent::{
    Answer, Entry, MAX_LISTED, MAX_LISTED_DEPTH, MessageKind, PIECE, Request, StreamEnd, WatchEvent,
};

use super::call::Call;
use super::error::{AgentError, Broken, Subject, TooMany};
use super::list::List;
use super::messages::{CallKind, Heard};
use crate::pool::session::Session;

/// A file that is read.
#[derive(Debug)]
pub struct FileReader {
    path: String,
    size: u64,
    call: Call,
    has_ended: bool,
}

impl FileReader {
    /// The size of the file when it was opened, in bytes. It can have changed, and files of `/proc` say zero.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next bytes; `None` at the end of the file or after an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, AgentError>> {
        if self.has_ended {
            return None;
        }
        match self.call.next().await {
            Heard::Piece(MessageKind::Content, bytes) => Some(Ok(bytes)),
            Heard::End(StreamEnd::Complete) => {
                self.has_ended = true;
                None
            }
            other => {
                self.has_ended = true;
                Some(Err(other.broken().of(Subject::Path(&self.path))))
            }
        }
    }
}

/// A file that is written. It has its name when [`finish`](Self::finish) has returned; a writer that is dropped before leaves nothing.
#[derive(Debug)]
pub struct FileWriter {
    path: String,
    call: Call,
}

impl FileWriter {
    /// Writes bytes. Returns when there is room for more.
    ///
    /// # Errors
    ///
    /// See [`AgentError`]. Nothing more can be written after one.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), AgentError> {
        for piece in bytes.chunks(PIECE) {
            let sent = self.call.send(MessageKind::Data, piece).await;
            sent.map_err(|broken| broken.of(Subject::Path(&self.path)))?;
        }
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn finish(mut self) -> Result<Entry, AgentError> {
        let subject = Subject::Path(&self.path);
        match self.call.finish().await {
            Ok(Answer::Entry(entry)) => Ok(entry),
            Ok(_) => Err(Broken::Nonsense.of(subject)),
            Err(broken) => Err(broken.of(subject)),
        }
    }
}

/// Changes of files.
#[derive(Debug)]
pub struct Watcher {
    path: String,
    call: Call,
    has_ended: bool,
}

impl Watcher {
    /// The next change; `None` after an error.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, AgentError>> {
        if self.has_ended {
            return None;
        }
        let event = match self.call.next().await {
            Heard::Piece(_, body) => self.call.parse(&body),
            other => Err(other.broken()),
        };
        self.has_ended = event.is_err();
        Some(event.map_err(|broken| broken.of(Subject::Path(&self.path))))
    }
}

/// Paths begin at the root, or at the agent's home: `/home/user` if that can be written, and otherwise the workspace.
impl Session {
    /// Describes a file, a folder or a link.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn stat(&self, path: &str) -> Result<Entry, AgentError> {
        self.entry(path, Request::Stat(path.to_owned())).await
    }

    /// Lists a folder: its entries, and those of its folders down to `depth`. One is the folder alone. `takes` says whether there is
    /// memory for further bytes of the list.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn list_folder_within(
        &self,
        path: &str,
        depth: u32,
        takes: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Vec<Entry>, AgentError> {
        let depth = depth.min(MAX_LISTED_DEPTH);
        let request = |window| Request::List(path.to_owned(), depth, window);
        let list = List {
            kind: CallKind::Entries,
            subject: Subject::Path(path),
            most: MAX_LISTED,
            too_many: TooMany::Entries,
        };
        list.receive(&self.agent, request, takes).await
    }

    /// The same for a list that is not kept.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn list_folder(&self, path: &str, depth: u32) -> Result<Vec<Entry>, AgentError> {
        self.list_folder_within(path, depth, &mut |_| true).await
    }

    /// Makes a folder, and those above it that are missing. Also returns whether it was made: it may have been there.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn make_folder(&self, path: &str) -> Result<(Entry, bool), AgentError> {
        let fail = |broken: Broken| broken.of(Subject::Path(path));
        let request = Request::MakeFolder(path.to_owned());
        match self.agent.call(CallKind::Plain, |_| request).await.map_err(fail)? {
            (Answer::Folder(entry, is_new), _) => Ok((entry, is_new)),
            _ => Err(fail(Broken::Nonsense)),
        }
    }

    /// Gives a file or folder another path. A file that has that path is replaced.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<Entry, AgentError> {
        self.entry(from, Request::Rename(from.to_owned(), to.to_owned())).await
    }

    /// Removes a file, or a folder with everything in it. Links are not followed.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn remove(&self, path: &str) -> Result<(), AgentError> {
        let called = self.agent.call(CallKind::Long, |_| Request::Remove(path.to_owned())).await;
        called.map(drop).map_err(|broken| broken.of(Subject::Path(path)))
    }

    /// Opens a file to read it from its beginning.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn read_file(&self, path: &str) -> Result<FileReader, AgentError> {
        let fail = |broken: Broken| broken.of(Subject::Path(path));
        let request = |window| Request::Read(path.to_owned(), window);
        match self.agent.call(CallKind::Content, request).await.map_err(fail)? {
            (Answer::Size(size), call) => {
                Ok(FileReader { path: path.to_owned(), size, call, has_ended: false })
            }
            _ => Err(fail(Broken::Nonsense)),
        }
    }

    /// Begins to write a file, which replaces the one that has this path. Missing folders are made.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn write_file(&self, path: &str) -> Result<FileWriter, AgentError> {
        let request = |_| Request::Write(path.to_owned());
        let called = self.agent.call(CallKind::Write, request).await;
        let (_, call) = called.map_err(|broken| broken.of(Subject::Path(path)))?;
        Ok(FileWriter { path: path.to_owned(), call })
    }

    /// Watches a file or a folder; with `recursive`, also the folders below it, and those that are made there.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<Watcher, AgentError> {
        let request = |window| Request::Watch(path.to_owned(), recursive, window);
        let called = self.agent.call(CallKind::Events, request).await;
        let (_, call) = called.map_err(|broken| broken.of(Subject::Path(path)))?;
        Ok(Watcher { path: path.to_owned(), call, has_ended: false })
    }

    async fn entry(&self, path: &str, request: Request) -> Result<Entry, AgentError> {
        let fail = |broken: Broken| broken.of(Subject::Path(path));
        match self.agent.call(CallKind::Plain, |_| request).await.map_err(fail)? {
            (Answer::Entry(entry), _) => Ok(entry),
            _ => Err(fail(Broken::Nonsense)),
        }
    }
}
