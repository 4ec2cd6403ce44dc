//! The end of a sandbox: its timeout, pauses, and killing it.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::pool::session::SessionError;
use serde::Deserialize;
use tokio::time::error::Elapsed;

use super::{
    CONNECT, DEFAULT_TIMEOUT, KILL, Owned, PAUSE, REFRESH, RESUME, TIMEOUT, opened, timeout,
};
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::registry::Description;
use crate::apis::operation::Operation;
use crate::audit::Note;
use crate::duration;
use crate::sessions::{AtDeadline, Deadline, InUse, TooLate};

/// How long a sandbox that is to be paused is waited for.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);

/// The fields of connecting and resuming.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Timeout {
    timeout: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refresh {
    duration: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pause {
    memory: Option<bool>,
}

/// Returns the secrets of a sandbox, and lets one that is paused go on. A timeout only prolongs the life of one that runs.
pub(super) async fn connect(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let fields: Connect = owned.fields()?;
    let session = owned.session(&id)?;
    go_on(&e2b, owned, &session, &fields, &CONNECT)
}

/// Lets a sandbox that is paused go on.
pub(super) async fn resume(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let fields: Connect = owned.fields()?;
    let session = owned.session(&id)?;
    if !session.is_paused() {
        return Err(E2bError::new(ErrorKind::Conflict, "the sandbox is running already"));
    }
    go_on(&e2b, owned, &session, &fields, &RESUME)
}

fn go_on(
    e2b: &E2b,
    owned: Owned,
    session: &InUse,
    fields: &Connect,
    operation: &Operation,
) -> Result<Response, E2bError> {
    let was_paused = session.is_paused();
    if fields.memory == Some(false) && was_paused {
        let why = "the sandbox was paused with its memory; it can't be started again from its files alone";
        return Err(E2bError::invalid("memory", why));
    }
    if fields.auto_pause == Some(true) {
        let why = "is chosen when the sandbox is created";
        return Err(E2bError::invalid("autoPause", why));
    }
    let mut note = begin(operation, &owned, session)?;
    let timeout = match fields.timeout {
        Some(seconds) => timeout("timeout", seconds, &owned.now)?,
        None => DEFAULT_TIMEOUT,
    };
    let sandbox = match e2b.sandboxes.find(&session.id) {
        Some(sandbox) => sandbox,
        None => {
            let template = session.language.name.clone();
            let description = Description { template, ..Description::default() };
            e2b.sandboxes.add(session, description).map_err(E2bError::no_random)?
        }
    };
    let deadline = Deadline::after(timeout, sandbox.description.at_timeout);
    let registry = owned.now.calls.sessions().registry();
    let set = registry.set_deadline(session, deadline, true);
    set.map_err(|too_late| refusal("timeout", too_late))?;
    note.answered("success");
    let body = opened(&sandbox, &owned.now);
    Ok(owned.answer(if was_paused { StatusCode::CREATED } else { StatusCode::OK }, &body))
}

/// Sets the time until the sandbox ends, counted from now.
pub(super) async fn set_timeout(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let Timeout { timeout: seconds } = owned.fields()?;
    let after = timeout("timeout", seconds, &owned.now)?;
    set(&e2b, owned, &id, ("timeout", after, false), &TIMEOUT)
}

/// Prolongs the life of a sandbox.
pub(super) async fn refresh(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let Refresh { duration } = owned.fields()?;
    let after = duration.map(|seconds| timeout("duration", seconds, &owned.now)).transpose()?;
    set(&e2b, owned, &id, ("duration", after.unwrap_or(DEFAULT_TIMEOUT), true), &REFRESH)
}

fn set(
    e2b: &E2b,
    owned: Owned,
    id: &str,
    (field, after, extends): (&str, Duration, bool),
    operation: &Operation,
) -> Result<Response, E2bError> {
    let session = owned.session(id)?;
    let mut note = begin(operation, &owned, &session)?;
    if session.is_paused() {
        let why = "the sandbox is paused; connect to it first, with a timeout";
        return Err(E2bError::new(ErrorKind::Conflict, why));
    }
    let sandbox = e2b.sandboxes.find(id);
    let action = sandbox.map_or(AtDeadline::End, |sandbox| sandbox.description.at_timeout);
    let registry = owned.now.calls.sessions().registry();
    let set = registry.set_deadline(&session, Deadline::after(after, action), extends);
    set.map_err(|too_late| refusal(field, too_late))?;
    note.answered("success");
    Ok(owned.done())
}

/// Pauses a sandbox: it is frozen with its memory until its client connects to it, or until its greatest age.
pub(super) async fn pause(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let fields: Pause = owned.fields()?;
    if fields.memory == Some(false) {
        let why =
            "a pause keeps the memory of a sandbox; one that keeps only its files is not offered";
        return Err(E2bError::invalid("memory", why));
    }
    let session = owned.session(&id)?;
    let mut note = begin(&PAUSE, &owned, &session)?;
    if !session.pause() {
        return Err(E2bError::new(ErrorKind::Conflict, "the sandbox is paused already"));
    }
    let pausing = Pausing { session: &session, is_paused: false };
    let frozen = tokio::time::timeout(FREEZE_TIMEOUT, session.session.freeze()).await;
    pausing.end(frozen)?;
    note.answered("success");
    Ok(owned.done())
}

/// A sandbox that is being paused. It goes on if that fails, or if the client goes away meanwhile.
struct Pausing<'a> {
    session: &'a InUse,
    is_paused: bool,
}

impl Pausing<'_> {
    fn end(mut self, frozen: Result<Result<bool, SessionError>, Elapsed>) -> Result<(), E2bError> {
        match frozen {
            Ok(Ok(true)) => {
                self.is_paused = true;
                Ok(())
            }
            Ok(Ok(false)) => {
                let why = "the machine is too busy to freeze the sandbox; it is running";
                Err(E2bError::new(ErrorKind::Busy, why))
            }
            Ok(Err(error)) => Err(E2bError::of_session(error)),
            Err(_) => {
                let why = "code runs in the sandbox, and has not ended in time; interrupt it, or try again later. The \
                           sandbox is running";
                Err(E2bError::new(ErrorKind::Busy, why))
            }
        }
    }
}

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        if !self.is_paused {
            self.session.resume();
        }
    }
}

/// Ends a sandbox with everything that runs in it.
pub(super) async fn kill(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let owned = e2b.owned(request).await?;
    let session = owned.session(&id)?;
    let mut note = begin(&KILL, &owned, &session)?;
    let closed = owned.now.calls.sessions().close(&owned.client, &id);
    closed.map_err(|none| super::not_found(&id, none))?;
    note.answered("success");
    Ok(owned.done())
}

/// Begins the line of a request in the audit log.
fn begin(operation: &Operation, owned: &Owned, session: &InUse) -> Result<Note, E2bError> {
    let begun = operation.begin(&owned.now, &owned.client);
    let mut note = begun.map_err(E2bError::of_call)?;
    note.place(&session.language.name, Some(&session.id));
    Ok(note)
}

fn refusal(field: &str, too_late: TooLate) -> E2bError {
    let message = format!(
        "the sandbox would be older than this server allows: it can live {} longer; its operator can \
         raise sessions.maxAge",
        duration::shown(Duration::from_secs(too_late.most.as_secs()))
    );
    E2bError::invalid(field, message).caused_by(too_late)
}
