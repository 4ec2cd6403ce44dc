//! The service `filesystem.Filesystem`.

mod watch;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use isolator_pool::pool::session::agent::AgentError;

use super::call::{self, DataCall, Line, called};
use super::connect::answer;
use super::connect::head::{Head, Shape};
use super::messages::Empty;
use super::messages::filesystem::{
    EntryInfo, ListDirRequest, ListDirResponse, MoveRequest, OfPath, WithEntry,
};
use crate::apis::Apis;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::operation::Operation;

/// A method of the service.
#[derive(Debug, Clone, Copy)]
enum Method {
    Stat,
    ListDir,
    MakeDir,
    Move,
    Remove,
    WatchDir,
    CreateWatcher,
    GetWatcherEvents,
    RemoveWatcher,
}

/// All of them.
static METHODS: [(Method, Operation); 9] = [
    (Method::Stat, called("/filesystem.Filesystem/Stat", "e2b.stat")),
    (Method::ListDir, called("/filesystem.Filesystem/ListDir", "e2b.list_folder")),
    (Method::MakeDir, called("/filesystem.Filesystem/MakeDir", "e2b.make_folder")),
    (Method::Move, called("/filesystem.Filesystem/Move", "e2b.move_file")),
    (Method::Remove, called("/filesystem.Filesystem/Remove", "e2b.remove_file")),
    (Method::WatchDir, called("/filesystem.Filesystem/WatchDir", "e2b.watch")),
    (Method::CreateWatcher, called("/filesystem.Filesystem/CreateWatcher", "e2b.create_watcher")),
    (
        Method::GetWatcherEvents,
        called("/filesystem.Filesystem/GetWatcherEvents", "e2b.get_changes"),
    ),
    (Method::RemoveWatcher, called("/filesystem.Filesystem/RemoveWatcher", "e2b.remove_watcher")),
];

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
        Method::Stat | Method::ListDir | Method::GetWatcherEvents | Method::RemoveWatcher => {
            Line::None
        }
        _ => Line::Of(operation),
    };
    let shape = if matches!(method, Method::WatchDir) { Shape::Stream } else { Shape::Unary };
    call::serve(&e2b, request, shape, line, |call, head, body| -> BoxFuture<'_, _> {
        match method {
            Method::Stat => Box::pin(stat(call, head, body)),
            Method::ListDir => Box::pin(list(call, head, body)),
            Method::MakeDir => Box::pin(make(call, head, body)),
            Method::Move => Box::pin(rename(call, head, body)),
            Method::Remove => Box::pin(remove(call, head, body)),
            Method::WatchDir => Box::pin(watch::stream(call, head, body)),
            Method::CreateWatcher => Box::pin(watch::create(call, head, body)),
            Method::GetWatcherEvents => Box::pin(watch::changes(call, head, body)),
            Method::RemoveWatcher => Box::pin(watch::remove(call, head, body)),
        }
    })
    .await
}

async fn stat(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let path = call.message::<OfPath>(&head, body).await?.into_path()?;
    let session = call.session()?;
    let entry = session.session.stat(&path).await.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &WithEntry { entry: entry.into() }))
}

async fn list(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (path, depth) = call.message::<ListDirRequest>(&head, body).await?.into_listing()?;
    let session = call.session()?;
    let share = &mut call.caller.share;
    let listed =
        session.session.list_folder_within(&path, depth, &mut |bytes| share.grow(bytes)).await;
    let entries = listed.map_err(E2bError::of_agent)?;
    let entries = entries.into_iter().map(EntryInfo::from).collect();
    Ok(answer::message(&head, &ListDirResponse { entries }))
}

async fn make(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let path = call.message::<OfPath>(&head, body).await?.into_path()?;
    let session = call.session()?;
    call.note.path(&path);
    let made = session.session.make_folder(&path).await;
    // A client takes the code of what exists for a folder.
    let made = made.map_err(|error| match error {
        AgentError::Exists(_) | AgentError::NotFolder(_) => {
            let message = format!("there is something else than a folder at {path:?} or above it");
            E2bError::new(ErrorKind::Invalid, message).caused_by(error)
        }
        error => E2bError::of_agent(error),
    });
    match made? {
        (entry, true) => Ok(answer::message(&head, &WithEntry { entry: entry.into() })),
        (entry, false) => {
            let message = format!("the folder {:?} is there already", entry.path);
            Err(E2bError::new(ErrorKind::Exists, message))
        }
    }
}

async fn rename(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let (from, to) = call.message::<MoveRequest>(&head, body).await?.into_paths()?;
    let session = call.session()?;
    call.note.path(&from);
    call.note.path(&to);
    let entry = session.session.rename(&from, &to).await.map_err(E2bError::of_agent)?;
    Ok(answer::message(&head, &WithEntry { entry: entry.into() }))
}

async fn remove(call: &mut DataCall, head: Head, body: Body) -> Result<Response, E2bError> {
    let path = call.message::<OfPath>(&head, body).await?.into_path()?;
    let session = call.session()?;
    call.note.path(&path);
    match session.session.remove(&path).await {
        // Clients remove what may not be there.
        Ok(()) | Err(AgentError::NotFound(_)) => Ok(answer::message(&head, &Empty {})),
        Err(error) => Err(E2bError::of_agent(error)),
    }
}
