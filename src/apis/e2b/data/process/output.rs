//! The stream of what a process prints, until its end.
//!
//! The next event is taken when the client has read the last one, so a process waits for a slow client, and nothing of its output is held
//! here.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use isolator_pool::pool::session::agent::{AgentError, Attached, ProcessEvent, StartProcess};
use isolator_pool::pool::session::{EndReason, SessionError};
use tokio::time::Instant;

use crate::apis::e2b::data::call::{DataCall, KeepAlive, at, timed_out};
use crate::apis::e2b::data::connect::answer;
use crate::apis::e2b::data::connect::head::Head;
use crate::apis::e2b::data::messages::process::{self, OutputKind};
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::registry::Sandbox;
use crate::audit::Note;
use crate::calls::CallOutcome;
use crate::sessions::InUse;
use crate::web::set_outcome;

/// A stream of events.
struct Output {
    head: Head,
    sandbox: Arc<Sandbox>,
    /// The session is in use as long as a client is attached.
    _session: InUse,
    attached: Attached,
    keepalive: KeepAlive,
    /// The time of the client, if it is limited.
    deadline: Option<Instant>,
    /// Envelopes that come before further events.
    ready: VecDeque<Bytes>,
    has_ended: bool,
    /// Its line in the audit log, until the process or the stream ends.
    note: Option<Note>,
    /// Bytes that it has printed, on standard output or its terminal and on standard error.
    printed: [u64; 2],
}

/// Starts a process, and answers with the stream of its events.
///
/// # Errors
///
/// When it can't be started.
pub(super) async fn started(
    call: &mut DataCall,
    head: Head,
    start: StartProcess,
) -> Result<Response, E2bError> {
    let session = call.sandbox.session()?;
    let asked = Instant::now();
    let started = call.now.calls.start_process(&session, start, &mut call.note).await;
    let attached = started.map_err(E2bError::of_call).map_err(of_start)?;
    let deadlines = &call.sandbox.deadlines;
    let pools = call.now.calls.pools();
    deadlines.started(&session.shared(), attached.pid(), head.timeout, pools).await;
    let deadline = head.timeout.map(|timeout| asked + timeout);
    let note = std::mem::take(&mut call.note);
    let mut response = stream(call, head, session, attached, deadline, note);
    set_outcome(&mut response, CallOutcome::Ran);
    Ok(response)
}

/// Attaches to a process, and answers with the stream of its further events.
///
/// # Errors
///
/// When there is no such process.
pub(super) async fn attached(
    call: &mut DataCall,
    head: Head,
    session: InUse,
    pid: u32,
) -> Result<Response, E2bError> {
    let deadline = head.timeout.map(|timeout| Instant::now() + timeout);
    let attached = session.session.attach(pid).await.map_err(E2bError::of_agent)?;
    let note = std::mem::take(&mut call.note);
    Ok(stream(call, head, session, attached, deadline, note))
}

/// The error of a process that was not started. Clients expect that a program or folder which is missing is one of the argument.
fn of_start(error: E2bError) -> E2bError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Denied => {
            let message = format!("the process can't be started there: {}", error.message());
            E2bError::new(ErrorKind::Invalid, message).caused_by(error)
        }
        _ => error,
    }
}

fn stream(
    call: &DataCall,
    head: Head,
    session: InUse,
    attached: Attached,
    deadline: Option<Instant>,
    note: Note,
) -> Response {
    let first = answer::envelope(head.accepted, &process::started(attached.pid()));
    let output = Output {
        head,
        sandbox: Arc::clone(&call.sandbox),
        _session: session,
        attached,
        keepalive: KeepAlive::new(call, &head),
        deadline,
        ready: VecDeque::from([first]),
        has_ended: false,
        note: Some(note),
        printed: [0; 2],
    };
    let envelopes = futures_util::stream::unfold(output, |mut output| async move {
        let next = output.next().await?;
        Some((next, output))
    });
    answer::stream(&head, Body::from_stream(envelopes))
}

impl Drop for Output {
    /// The client has gone away, or has had enough. Its process goes on.
    fn drop(&mut self) {
        if let Some(note) = &mut self.note {
            note.process_detached(self.printed);
        }
    }
}

impl Output {
    /// The next envelope; `None` after the last one.
    ///
    /// # Errors
    ///
    /// When the sandbox was closed meanwhile: clients expect that the connection breaks then, and look whether it still runs.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(Ok(ready));
        }
        if self.has_ended {
            return None;
        }
        let deadline = self.deadline;
        let event = tokio::select! {
            biased;
            () = at(deadline) => return Some(Ok(self.end(&timed_out("the process did not end")))),
            event = self.attached.next() => event,
            () = self.keepalive.due() => {
                return Some(Ok(answer::envelope(self.head.accepted, &process::keepalive())));
            }
        };
        let (kind, bytes) = match event {
            Some(ProcessEvent::Stdout(bytes)) => (OutputKind::Stdout, bytes),
            Some(ProcessEvent::Stderr(bytes)) => (OutputKind::Stderr, bytes),
            Some(ProcessEvent::Terminal(bytes)) => (OutputKind::Terminal, bytes),
            Some(ProcessEvent::Ended(end)) => {
                self.sandbox.deadlines.ended(self.attached.pid());
                if let Some(mut note) = self.note.take() {
                    note.process_ended(end.end, self.printed);
                }
                self.has_ended = true;
                self.ready.push_back(answer::last(None));
                return Some(Ok(answer::envelope(self.head.accepted, &process::ended(end))));
            }
            Some(ProcessEvent::Lost(error)) => {
                let is_closed =
                    matches!(error, AgentError::Session(SessionError::Ended(EndReason::Closed)));
                let last = self.end(&E2bError::of_agent(error));
                let broken = || io::Error::other("the sandbox has ended meanwhile");
                return Some(if is_closed { Err(broken()) } else { Ok(last) });
            }
            // The end comes before this.
            None => {
                return Some(Ok(
                    self.end(&E2bError::new(ErrorKind::Internal, "the process has no end"))
                ));
            }
        };
        self.printed[usize::from(matches!(kind, OutputKind::Stderr))] += bytes.len() as u64;
        Some(Ok(answer::envelope(self.head.accepted, &process::output(kind, &bytes))))
    }

    /// The last envelope of a stream that ends with an error.
    fn end(&mut self, error: &E2bError) -> Bytes {
        self.has_ended = true;
        if let Some(mut note) = self.note.take() {
            note.answered(error.kind().connect_code());
        }
        answer::last(Some(error))
    }
}
