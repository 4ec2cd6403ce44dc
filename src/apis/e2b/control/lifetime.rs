//! The end of a sandbox: its timeout, pauses, and killing it.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::pool::session::SessionError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::error::Elapsed;

use super::{
    Asked, CONNECT, DEFAULT_TIMEOUT, KILL, PAUSE, REFRESH, RESUME, TIMEOUT, not_found, noted,
    opened, timeout,
};
use crate::apis::body::NoFields;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::registry::Description;
use crate::apis::operation::Operation;
use crate::duration;
use crate::sessions::{AtDeadline, Deadline, InUse, TooLate};

/// How long a sandbox that is to be paused is waited for.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);

/// The fields of connecting and resuming.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeout {
    timeout: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refresh {
    duration: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pause {
    memory: Option<bool>,
    /// A sandbox that does not answer is never paused, so every pause is as this asks.
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

/// Returns the secrets of a sandbox, and resumes it if it is paused. A timeout only prolongs the life of one that runs.
pub(super) async fn connect(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked = Asked::receive(&e2b, &id, request).await?;
    opened_again(&e2b, asked, &CONNECT)
}

/// Resumes a sandbox that is paused.
pub(super) async fn resume(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked = Asked::receive(&e2b, &id, request).await?;
    if !asked.session.is_paused() {
        return Err(E2bError::new(ErrorKind::Conflict, "the sandbox is running already"));
    }
    opened_again(&e2b, asked, &RESUME)
}

fn opened_again(
    e2b: &E2b,
    asked: Asked<Connect>,
    operation: &Operation,
) -> Result<Response, E2bError> {
    let (session, fields, now) = (&asked.session, &asked.fields, &asked.owned.now);
    let was_paused = session.is_paused();
    if fields.memory == Some(false) && was_paused {
        let why = "the sandbox was paused with its memory; it can't be started again from its files alone";
        return Err(E2bError::invalid("memory", why));
    }
    if fields.auto_pause == Some(true) {
        let why = "is chosen when the sandbox is created";
        return Err(E2bError::invalid("autoPause", why));
    }
    let timeout = timeout("timeout", fields.timeout, DEFAULT_TIMEOUT, now)?;
    let mut note = asked.begin(operation)?;
    let sandbox = match e2b.sandboxes.find(&session.id) {
        Some(sandbox) => sandbox,
        None => {
            let template = session.language.name.clone();
            let description = Description { template, ..Description::default() };
            e2b.sandboxes.add(session, description).map_err(E2bError::no_random)?
        }
    };
    let deadline = Deadline::after(timeout, sandbox.description.at_timeout);
    let set = now.calls.sessions().registry().set_deadline(session, deadline, true);
    noted(&mut note, set.map_err(|too_late| refusal("timeout", too_late)))?;
    note.answered("success");
    let status = if was_paused { StatusCode::CREATED } else { StatusCode::OK };
    let body = opened(&sandbox, now);
    Ok(asked.owned.answer(status, &body))
}

/// Sets the time until the sandbox ends, counted from now.
pub(super) async fn set_timeout(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked = Asked::<Timeout>::receive(&e2b, &id, request).await?;
    let seconds = Some(asked.fields.timeout);
    set(&e2b, asked, ("timeout", seconds, false), &TIMEOUT)
}

/// Prolongs the life of a sandbox.
pub(super) async fn refresh(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked = Asked::<Refresh>::receive(&e2b, &id, request).await?;
    let seconds = asked.fields.duration;
    set(&e2b, asked, ("duration", seconds, true), &REFRESH)
}

fn set<T: DeserializeOwned>(
    e2b: &E2b,
    asked: Asked<T>,
    (field, seconds, extends): (&str, Option<u64>, bool),
    operation: &Operation,
) -> Result<Response, E2bError> {
    let (session, now) = (&asked.session, &asked.owned.now);
    let after = timeout(field, seconds, DEFAULT_TIMEOUT, now)?;
    if session.is_paused() {
        let why = "the sandbox is paused; connect to it first, with a timeout";
        return Err(E2bError::new(ErrorKind::Conflict, why));
    }
    let mut note = asked.begin(operation)?;
    let sandbox = e2b.sandboxes.find(&session.id);
    let action = sandbox.map_or(AtDeadline::End, |sandbox| sandbox.description.at_timeout);
    let registry = now.calls.sessions().registry();
    let set = registry.set_deadline(session, Deadline::after(after, action), extends);
    noted(&mut note, set.map_err(|too_late| refusal(field, too_late)))?;
    Ok(asked.done(note))
}

/// Pauses a sandbox: it is frozen with its memory until its client connects to it, or until its greatest age.
pub(super) async fn pause(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked = Asked::<Pause>::receive(&e2b, &id, request).await?;
    if asked.fields.memory == Some(false) {
        let why =
            "a pause keeps the memory of a sandbox; one that keeps only its files is not offered";
        return Err(E2bError::invalid("memory", why));
    }
    let session = &asked.session;
    let mut note = asked.begin(&PAUSE)?;
    if !session.pause() {
        note.answered("error");
        return Err(E2bError::new(ErrorKind::Conflict, "the sandbox is paused already"));
    }
    let pausing = Pausing { session, is_paused: false };
    let frozen = tokio::time::timeout(FREEZE_TIMEOUT, session.session.freeze()).await;
    noted(&mut note, pausing.end(frozen))?;
    Ok(asked.done(note))
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
    let asked = Asked::<NoFields>::receive(&e2b, &id, request).await?;
    let mut note = asked.begin(&KILL)?;
    let closed = asked.owned.now.calls.sessions().close(&asked.owned.client, &id);
    noted(&mut note, closed.map_err(|none| not_found(&id, none)))?;
    Ok(asked.done(note))
}

fn refusal(field: &str, too_late: TooLate) -> E2bError {
    let message = format!(
        "the sandbox would be older than this server allows: it can live {} longer; its operator can \
         raise sessions.maxAge",
        duration::shown(Duration::from_secs(too_late.most.as_secs()))
    );
    E2bError::invalid(field, message).caused_by(too_late)
}
