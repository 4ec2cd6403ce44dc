//! Processes of a session that its client has started along with the cells.

use std::time::Duration;

use bytes::Bytes;
use isolator_runner::wire::agent::{
    Answer, MAX_INPUT, MessageKind, ProcessInfo, Request, StartProcess, StreamEnd, TerminalSize,
};
use isolator_runner::wire::{End, agent};

use super::call::Call;
use super::error::{AgentError, Broken, Subject, TooMany};
use super::list::List;
use super::messages::{CallKind, Heard};
use crate::pool::session::Session;

/// Longest time that a process may take to read a piece of its input.
const INPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// Something of a process to which a client is attached.
#[derive(Debug)]
pub enum ProcessEvent {
    /// Bytes of its standard output.
    Stdout(Bytes),
    /// Bytes of its standard error.
    Stderr(Bytes),
    /// Bytes of its terminal.
    Terminal(Bytes),
    /// It has ended. No other event follows.
    Ended(ProcessEnd),
    /// Its end is not known. No other event follows.
    Lost(AgentError),
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Its exit code, or the signal that has ended it.
    pub end: End,
}

/// A client that is attached to a process. The process lives on when this is dropped.
#[derive(Debug)]
pub struct Attached {
    pid: u32,
    call: Call,
    has_ended: bool,
}

impl Attached {
    /// The number of the process in its sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next event; `None` after the last one. The process waits when it has printed more than was taken here.
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        if self.has_ended {
            return None;
        }
        let event = match self.call.next().await {
            Heard::Piece(MessageKind::Stdout, bytes) => ProcessEvent::Stdout(bytes),
            Heard::Piece(MessageKind::Stderr, bytes) => ProcessEvent::Stderr(bytes),
            Heard::Piece(MessageKind::Terminal, bytes) => ProcessEvent::Terminal(bytes),
            Heard::End(StreamEnd::Ended(end)) => {
                self.has_ended = true;
                ProcessEvent::Ended(ProcessEnd { end })
            }
            other => {
                self.has_ended = true;
                let broken = other.broken();
                ProcessEvent::Lost(broken.of(Subject::Process(self.pid)))
            }
        };
        Some(event)
    }
}

impl Session {
    /// Starts a process that lives until it ends by itself or the session does.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn start_process(&self, start: StartProcess) -> Result<Attached, AgentError> {
        let program = start.argv.first().cloned().unwrap_or_default();
        let folder = start.cwd.clone().unwrap_or_default();
        let subject = Subject::Program(&program, &folder);
        let request = |window| Request::Start(start, window);
        let (answer, call) =
            self.agent.call(CallKind::Process, request).await.map_err(|it| it.of(subject))?;
        attached(answer, call, subject)
    }

    /// Attaches to a process that runs, or has ended no more than 30 seconds ago. Only what it prints from now on comes.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn attach(&self, pid: u32) -> Result<Attached, AgentError> {
        let subject = Subject::Process(pid);
        let request = |window| Request::Attach(pid, window);
        let (answer, call) =
            self.agent.call(CallKind::Process, request).await.map_err(|it| it.of(subject))?;
        attached(answer, call, subject)
    }

    /// The processes that run, of those that were started in this way. `takes` says whether there is memory for further bytes of
    /// the list.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn processes_within(
        &self,
        takes: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Vec<ProcessInfo>, AgentError> {
        let list = List {
            kind: CallKind::Processes,
            subject: Subject::All,
            most: agent::MAX_PROCESSES,
            too_many: TooMany::Processes,
        };
        list.receive(&self.agent, Request::Processes, takes).await
    }

    /// The same for a list that is not kept.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, AgentError> {
        self.processes_within(&mut |_| true).await
    }

    /// Writes to the standard input or the terminal of a process. Returns when the process has room for it.
    ///
    /// # Errors
    ///
    /// See [`AgentError`]. The process may then have got the beginning.
    pub async fn send_input(&self, pid: u32, bytes: Bytes) -> Result<(), AgentError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(MAX_INPUT));
            let sent = tokio::time::timeout(INPUT_TIMEOUT, self.agent.input(pid, &piece)).await;
            let sent = sent.map_err(|_| AgentError::InputNotRead(pid))?;
            sent.map_err(|broken| broken.of(Subject::Process(pid)))?;
        }
        Ok(())
    }

    /// Closes the standard input of a process, after everything that was sent before.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn close_input(&self, pid: u32) -> Result<(), AgentError> {
        self.for_process(pid, Request::CloseInput(pid)).await
    }

    /// Sends a signal to a process and to its group.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn signal(&self, pid: u32, signal: i32) -> Result<(), AgentError> {
        self.for_process(pid, Request::Signal(pid, signal)).await
    }

    /// Changes the size of the terminal of a process.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), AgentError> {
        self.for_process(pid, Request::Resize(pid, size)).await
    }

    async fn for_process(&self, pid: u32, request: Request) -> Result<(), AgentError> {
        let called = self.agent.call(CallKind::Plain, |_| request).await;
        called.map(drop).map_err(|broken| broken.of(Subject::Process(pid)))
    }
}

fn attached(answer: Answer, call: Call, subject: Subject<'_>) -> Result<Attached, AgentError> {
    match answer {
        Answer::Process(pid) => Ok(Attached { pid, call, has_ended: false }),
        _ => Err(Broken::Nonsense.of(subject)),
    }
}
