//! A stream of input for a process.

use axum::body::{Body, BodyDataStream, Bytes};
use axum::response::Response;
use futures_util::StreamExt as _;
use isolator_pool::pool::session::Session;
use isolator_pool::pool::session::agent::AgentError;
use isolator_runner::wire::agent::MAX_INPUT;
use tokio::time::Instant;

use super::pid_of;
use crate::apis::e2b::check_owner;
use crate::apis::e2b::data::call::{DataCall, timed_out};
use crate::apis::e2b::data::connect::ProtocolError;
use crate::apis::e2b::data::connect::answer;
use crate::apis::e2b::data::connect::envelope::Envelopes;
use crate::apis::e2b::data::connect::head::Head;
use crate::apis::e2b::data::messages::InvalidField;
use crate::apis::e2b::data::messages::process::{InputPart, StreamInputRequest};
use crate::apis::e2b::error::E2bError;
use crate::audit::Note;

/// Takes the parts of a stream one after the other: the next piece of the request is received when the process has room for the last one.
pub(super) async fn stream(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let mut body = body.into_data_stream();
    let mut process = None;
    let taken = take_all(call, &head, &mut body, &mut process);
    let taken = match head.timeout {
        None => taken.await,
        Some(timeout) => {
            let timed = tokio::time::timeout_at(Instant::now() + timeout, taken).await;
            timed.unwrap_or_else(|_| Err(timed_out("the stream of input did not end")))
        }
    };
    // The parts before are the process's input already.
    let has_input = process.is_some_and(|process: Process| process.has_input);
    taken.map_err(|error| if has_input { error.after_a_part() } else { error })?;
    let answer = [answer::envelope(head.accepted, b"{}"), answer::last(None)].concat();
    Ok(answer::stream(&head, answer.into()))
}

/// The process of a stream.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: u32,
    /// Whether a part of the stream may have come to it.
    has_input: bool,
}

async fn take_all(
    call: &mut DataCall,
    head: &Head,
    body: &mut BodyDataStream,
    process: &mut Option<Process>,
) -> Result<(), E2bError> {
    let mut envelopes = Envelopes::new(head.encoding);
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(ProtocolError::Receive)?;
        check_owner(&call.caller)?;
        if !call.caller.share.grow(piece.len()) {
            return Err(ProtocolError::NoRoom.into());
        }
        envelopes.push(&piece);
        drop(piece);
        while let Some(part) = envelopes.next::<StreamInputRequest>(&mut call.caller.share)? {
            take(call, part.into_part()?, process).await?;
            // What a compressed message became is gone.
            call.caller.share.replace(envelopes.len());
        }
        call.caller.share.replace(envelopes.len());
    }
    envelopes.finish()?;
    process.map(|_| ()).ok_or_else(|| ProtocolError::NoMessage.into())
}

/// Sends input to a process.
///
/// # Errors
///
/// When the process does not take it. It may have got the beginning of a long one.
pub(super) async fn send(
    session: &Session,
    pid: u32,
    bytes: Bytes,
    note: &mut Note,
) -> Result<(), E2bError> {
    note.input(&bytes);
    let is_sent_in_parts = bytes.len() > MAX_INPUT;
    let sent = session.send_input(pid, bytes).await.map_err(E2bError::of_agent);
    sent.map_err(|error| if is_sent_in_parts { error.after_a_part() } else { error })
}

/// Takes one part of the stream. A session is in use only while it does something for the client.
async fn take(
    call: &mut DataCall,
    part: InputPart,
    process: &mut Option<Process>,
) -> Result<(), E2bError> {
    match (part, process.as_mut()) {
        (InputPart::KeepAlive, _) => Ok(()),
        (InputPart::Start(selected), None) => {
            let session = call.session()?;
            let pid = pid_of(&session.session, selected).await?;
            let processes = session.session.processes().await.map_err(E2bError::of_agent)?;
            if !processes.iter().any(|process| process.pid == pid) {
                return Err(E2bError::of_agent(AgentError::NoProcess(pid)));
            }
            call.note.process(pid);
            *process = Some(Process { pid, has_input: false });
            Ok(())
        }
        (InputPart::Data(bytes), Some(process)) => {
            let session = call.session()?;
            send(&session.session, process.pid, bytes.into(), &mut call.note).await?;
            process.has_input = true;
            Ok(())
        }
        (InputPart::Start(_), Some(_)) => {
            Err(InvalidField::new("start", "can be sent once: as the first message").into())
        }
        (InputPart::Data(_), None) => {
            Err(InvalidField::new("data", "comes before start, which names the process").into())
        }
    }
}
