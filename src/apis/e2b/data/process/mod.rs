//! The service `process.Process`.

mod input;
mod output;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use isolator_pool::pool::session::Session;

use super::call::{self, DataCall, Line, called, end_claim};
use super::connect::answer;
use super::connect::head::{Head, Shape};
use super::messages::Empty;
use super::messages::process::{
    ListResponse, OfProcess, Selected, SendInputRequest, SendSignalRequest, StartRequest,
    UpdateRequest,
};
use crate::apis::Apis;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::operation::Operation;

/// A method of the service.
#[derive(Debug, Clone, Copy)]
enum Method {
    List,
    Start,
    Connect,
    Update,
    SendInput,
    StreamInput,
    SendSignal,
    CloseStdin,
}

/// All of them.
static METHODS: [(Method, Operation); 8] = [
    (Method::List, called("/process.Process/List", "e2b.list_processes")),
    (Method::Start, START),
    (Method::Connect, called("/process.Process/Connect", "e2b.attach_process")),
    (Method::Update, called("/process.Process/Update", "e2b.resize_terminal")),
    (Method::SendInput, SEND_INPUT),
    (Method::StreamInput, called("/process.Process/StreamInput", "e2b.stream_input")),
    (Method::SendSignal, called("/process.Process/SendSignal", "e2b.send_signal")),
    (Method::CloseStdin, called("/process.Process/CloseStdin", "e2b.close_input")),
];

/// The start of a process, which the audit log has.
const START: Operation = called("/process.Process/Start", "e2b.start_process");

/// Input of a process, which would read it twice if it came twice.
const SEND_INPUT: Operation = called("/process.Process/SendInput", "e2b.send_input");

/// The paths.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    call::route(apis, e2b, &METHODS, serve)
}

/// Serves a call.
async fn serve(
    method: Method,
    operation: &'static Operation,
    e2b: E2b,
    request: Request,
) -> Response {
    let line = match method {
        Method::List | Method::Update => Line::None,
        _ => Line::Of(operation),
    };
    let shape = match method {
        Method::Start | Method::Connect | Method::StreamInput => Shape::Stream,
        _ => Shape::Unary,
    };
    call::serve(&e2b, request, shape, line, |call, head, body| -> BoxFuture<'_, _> {
        match method {
            Method::List => Box::pin(list(call, head, body)),
            Method::Start => Box::pin(start(call, head, body)),
            Method::Connect => Box::pin(connect(call, head, body)),
            Method::Update => Box::pin(update(call, head, body)),
            Method::SendInput => Box::pin(send_input(call, head, body)),
            Method::StreamInput => Box::pin(input::stream(call, head, body)),
            Method::SendSignal => Box::pin(send_signal(call, head, body)),
            Method::CloseStdin => Box::pin(close_stdin(call, head, body)),
        }
    })
    .await
}

async fn list(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let OfProcess { .. } = call.message(&head, body).await?;
    let session = call.session()?;
    let share = &mut call.caller.share;
    let listed = session.session.processes_within(&mut |bytes| share.grow(bytes)).await;
    let processes = listed.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &ListResponse::new(processes)))
}

async fn start(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (request, claim) = call.message_once::<StartRequest>(&START, &head, body).await?;
    let started = match request.into_process(call.sandbox.env()) {
        Ok(start) => output::started(call, head, start).await,
        Err(error) => Err(error.into()),
    };
    end_claim(claim, &started);
    started
}

async fn connect(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let request: OfProcess = call.message(&head, body).await?;
    let session = call.session()?;
    let pid = pid_of(&session.session, request.selected()?).await?;
    call.note.process(pid);
    output::attached(call, head, session, pid).await
}

async fn update(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (selected, size) = call.message::<UpdateRequest>(&head, body).await?.into_size()?;
    let session = call.session()?;
    let pid = pid_of(&session.session, selected).await?;
    session.session.resize(pid, size).await.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &Empty {}))
}

async fn send_input(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (request, claim) = call.message_once::<SendInputRequest>(&SEND_INPUT, &head, body).await?;
    let sent = sent_input(call, request).await;
    end_claim(claim, &sent);
    sent.map(|()| answer::message(&head, &Empty {}))
}

async fn sent_input(call: &mut DataCall, request: SendInputRequest) -> Result<(), E2bError> {
    let (selected, bytes) = request.into_input()?;
    let session = call.session()?;
    let pid = pid_of(&session.session, selected).await?;
    call.note.process(pid);
    input::send(&session.session, pid, bytes.into(), &mut call.note).await
}

async fn send_signal(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (selected, signal) = call.message::<SendSignalRequest>(&head, body).await?.into_signal()?;
    let session = call.session()?;
    let pid = pid_of(&session.session, selected).await?;
    call.note.process(pid);
    call.note.signal(signal);
    session.session.signal(pid, signal).await.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &Empty {}))
}

async fn close_stdin(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let selected = call.message::<OfProcess>(&head, body).await?.selected()?;
    let session = call.session()?;
    let pid = pid_of(&session.session, selected).await?;
    call.note.process(pid);
    session.session.close_input(pid).await.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &Empty {}))
}

/// The number of a process.
///
/// # Errors
///
/// When no process has this tag, or several have it.
async fn pid_of(session: &Session, selected: Selected) -> Result<u32, E2bError> {
    let tag = match selected {
        Selected::Pid(pid) => return Ok(pid),
        Selected::Tag(tag) => tag,
    };
    let processes = session.processes().await.map_err(E2bError::of_agent)?;
    let mut tagged = processes.iter().filter(|process| process.tag.as_ref() == Some(&tag));
    let shown: String = tag.chars().take(64).collect();
    match (tagged.next(), tagged.next()) {
        (Some(process), None) => Ok(process.pid),
        (None, _) => {
            let message = format!("there is no process with the tag {shown:?}, or it has ended");
            Err(E2bError::new(ErrorKind::NotFound, message))
        }
        (Some(_), Some(_)) => {
            let message = format!("several processes have the tag {shown:?}: name one by its pid");
            Err(E2bError::new(ErrorKind::Conflict, message))
        }
    }
}
