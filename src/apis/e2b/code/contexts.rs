//! Contexts: listed, created, restarted and removed.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CREATE, E2b, LIST, REMOVE, RESTART, of_call, receive};
use crate::apis::body::NoFields;
use crate::apis::e2b::error::E2bError;
use crate::apis::operation::Operation;
use crate::apis::{access::Caller, answer};
use crate::audit::Note;
use crate::calls::{CallError, Serving};
use crate::sessions::InUse;
use crate::sessions::contexts::Context;

/// A request about the contexts of a sandbox that was let in.
struct Begun {
    now: Serving,
    session: InUse,
    caller: Caller,
    note: Note,
}

impl Begun {
    fn end<T>(&mut self, result: Result<T, CallError>) -> Result<T, E2bError> {
        match &result {
            Ok(_) => self.note.answered("success"),
            Err(error) => {
                self.note.answered(error.status());
                error.log();
            }
        }
        result.map_err(of_call)
    }
}

/// The fields of a new context.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

async fn begin<T: DeserializeOwned>(
    e2b: &E2b,
    operation: &Operation,
    request: Request,
) -> Result<(Begun, T), E2bError> {
    let (head, body) = request.into_parts();
    let (sandbox, mut caller) = e2b.let_in(&head)?;
    let (fields, _) = receive(&mut caller, &head, body).await?;
    let now = e2b.now();
    let session = sandbox.session()?;
    let mut note = operation.begin(&now, &caller.client).map_err(E2bError::of_call)?;
    note.place(&session.language.name, Some(&session.id));
    Ok((Begun { now, session, caller, note }, fields))
}

/// All contexts of a sandbox.
pub(super) async fn list(State(e2b): State<E2b>, request: Request) -> Result<Response, E2bError> {
    let (mut begun, NoFields {}) = begin(&e2b, &LIST, request).await?;
    let listed = begun.now.calls.contexts(&begun.session).await;
    let mut contexts = begun.end(listed)?;
    // Clients take the last one for the newest, and a default context may have been opened after it.
    contexts.sort_by_key(|context| !context.is_default);
    let contexts: Vec<_> = contexts.iter().map(|context| shown(context, &begun.session)).collect();
    Ok(begun.caller.answer(answer(StatusCode::OK, &Value::Array(contexts))))
}

/// Opens a context.
pub(super) async fn create(State(e2b): State<E2b>, request: Request) -> Result<Response, E2bError> {
    let (mut begun, new) = begin::<NewContext>(&e2b, &CREATE, request).await?;
    let (language, cwd) = (new.language.unwrap_or_default(), new.cwd.unwrap_or_default());
    if cwd.contains('\0') {
        return Err(E2bError::invalid("cwd", "contains a NUL character"));
    }
    let opened = begun.now.calls.open_context(&begun.session, &language, &cwd).await;
    let context = begun.end(opened)?;
    let body = shown(&context, &begun.session);
    Ok(begun.caller.answer(answer(StatusCode::OK, &body)))
}

/// Starts the interpreter of a context anew.
pub(super) async fn restart(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let (mut begun, NoFields {}) = begin(&e2b, &RESTART, request).await?;
    let calls = begun.now.calls.clone();
    let restarted = match calls.context(&begun.session, &id) {
        Ok(context) => calls.restart_context(&begun.session, &context).await,
        Err(error) => Err(error),
    };
    begun.end(restarted)?;
    Ok(begun.caller.answer(answer(StatusCode::OK, &Value::Null)))
}

/// Ends a context.
pub(super) async fn remove(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let (mut begun, NoFields {}) = begin(&e2b, &REMOVE, request).await?;
    let calls = begun.now.calls.clone();
    let removed = match calls.context(&begun.session, &id) {
        Ok(context) => calls.remove_context(&begun.session, &context).await,
        Err(error) => Err(error),
    };
    begun.end(removed)?;
    Ok(begun.caller.answer(StatusCode::OK.into_response()))
}

/// A context as clients read it.
fn shown(context: &Context, session: &InUse) -> Value {
    let workdir = session.language.sandbox.workdir.trim_end_matches('/');
    let cwd = match context.cwd.as_str() {
        "" => workdir.to_owned(),
        cwd if cwd.starts_with('/') => cwd.to_owned(),
        cwd => format!("{workdir}/{cwd}"),
    };
    json!({ "id": context.id, "language": context.language_name, "cwd": cwd })
}
