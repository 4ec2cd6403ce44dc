//! A stream of input for a process.

use axum::body::{Body, BodyDataStream};
use axum::response::Response;
use futures_util::StreamExt as _;
use isolator_pool::pool::session::agent::AgentError;
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

/// Takes the parts of a stream one after the other: the next piece of the request is received when the process has room for the last one.
pub(super) async fn stream(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let mut body = body.into_data_stream();
    let taken = take_all(call, &head, &mut body);
    match head.timeout {
        None => taken.await,
        Some(timeout) => {
            let timed = tokio::time::timeout_at(Instant::now() + timeout, taken).await;
            timed.unwrap_or_else(|_| Err(timed_out("the stream of input did not end")))
        }
    }?;
    let answer = [answer::envelope(head.accepted, b"{}"), answer::last(None)].concat();
    Ok(answer::stream(&head, answer.into()))
}

async fn take_all(
    call: &mut DataCall,
    head: &Head,
    body: &mut BodyDataStream,
) -> Result<(), E2bError> {
    let mut envelopes = Envelopes::new(head.encoding);
    let mut process = None;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(ProtocolError::Receive)?;
        check_owner(&call.caller)?;
        if !call.caller.share.grow(piece.len()) {
            return Err(ProtocolError::NoRoom.into());
        }
        envelopes.push(&piece);
        drop(piece);
        while let Some(part) = envelopes.next::<StreamInputRequest>(&mut call.caller.share)? {
            take(call, part.into_part()?, &mut process).await?;
            // What a compressed message became is gone.
            call.caller.share.replace(envelopes.len());
        }
        call.caller.share.replace(envelopes.len());
    }
    envelopes.finish()?;
    process.map(drop).ok_or_else(|| ProtocolError::NoMessage.into())
}

/// Takes one part of the stream. A session is in use only while it does something for the client.
async fn take(
    call: &mut DataCall,
    part: InputPart,
    process: &mut Option<u32>,
) -> Result<(), E2bError> {
    match (part, *process) {
        (InputPart::KeepAlive, _) => Ok(()),
        (InputPart::Start(selected), None) => {
            let session = call.session()?;
            let pid = pid_of(&session.session, selected).await?;
            let processes = session.session.processes().await.map_err(E2bError::of_agent)?;
            if !processes.iter().any(|process| process.pid == pid) {
                return Err(E2bError::of_agent(AgentError::NoProcess(pid)));
            }
            call.note.process(pid);
            *process = Some(pid);
            Ok(())
        }
        (InputPart::Data(bytes), Some(pid)) => {
            let session = call.session()?;
            call.note.input(&bytes);
            session.session.send_input(pid, bytes.into()).await.map_err(E2bError::of_agent)
        }
        (InputPart::Start(_), Some(_)) => {
            Err(InvalidField::new("start", "can be sent once: as the first message").into())
        }
        (InputPart::Data(_), None) => {
            Err(InvalidField::new("data", "comes before start, which names the process").into())
        }
    }
}
