//! Watches of folders: as a stream, or by a watcher that a client asks for its changes.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::response::Response;
use tokio::time::Instant;

use crate::apis::e2b::data::call::{DataCall, KeepAlive, at, timed_out};
use crate::apis::e2b::data::connect::answer;
use crate::apis::e2b::data::connect::head::Head;
use crate::apis::e2b::data::messages::Empty;
use crate::apis::e2b::data::messages::filesystem::{
    self, CreateWatcherResponse, FilesystemEvent, OfWatcher, WatchRequest, WatcherEvents,
};
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::watchers::Watching;
use crate::audit::Note;
use crate::sessions::InUse;

/// A stream of changes.
struct Changes {
    head: Head,
    session: InUse,
    watching: Watching,
    keepalive: KeepAlive,
    /// The time of the client, if it is limited.
    deadline: Option<Instant>,
    ready: VecDeque<Bytes>,
    has_ended: bool,
    /// Its line in the audit log, which is written when the watch ends.
    note: Note,
}

impl Drop for Changes {
    /// The client ends a watch by going away.
    fn drop(&mut self) {
        self.note.answered("success");
    }
}

/// Watches a folder for as long as the client reads the answer.
pub(super) async fn stream(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let deadline = head.timeout.map(|timeout| Instant::now() + timeout);
    let watched = call.message::<WatchRequest>(&head, body).await?.into_watched()?;
    let session = call.session()?;
    call.note.path(&watched.path);
    let watching = Watching::begin(&session.session, watched).await?;
    let first = answer::envelope(head.accepted, &filesystem::watching());
    let ready = VecDeque::from([first]);
    let keepalive = KeepAlive::new(call, &head);
    let note = std::mem::take(&mut call.note);
    let has_ended = false;
    let changes = Changes { head, session, watching, keepalive, deadline, ready, has_ended, note };
    let envelopes = futures_util::stream::unfold(changes, |mut changes| async move {
        let next = changes.next().await?;
        Some((Ok::<_, Infallible>(next), changes))
    });
    Ok(answer::stream(&head, Body::from_stream(envelopes)))
}

impl Changes {
    /// The next envelope; `None` after the last one.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        if self.has_ended {
            return None;
        }
        let changed = tokio::select! {
            biased;
            () = at(self.deadline) => Err(timed_out("the watch did not end")),
            changed = self.watching.next(&self.session.session) => changed,
            () = self.keepalive.due() => {
                return Some(answer::envelope(self.head.accepted, &filesystem::keepalive()));
            }
        };
        Some(match changed {
            Ok(change) => {
                let event = FilesystemEvent::new(change, self.watching.root());
                answer::envelope(self.head.accepted, &filesystem::changed(&event))
            }
            Err(error) => {
                self.has_ended = true;
                self.note.answered(error.kind().connect_code());
                answer::last(Some(&error))
            }
        })
    }
}

/// Begins to watch a folder for later questions.
pub(super) async fn create(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let watched = call.message::<WatchRequest>(&head, body).await?.into_watched()?;
    let session = call.session()?;
    call.note.path(&watched.path);
    let watching = Watching::begin(&session.session, watched).await?;
    let pools = call.now.calls.pools();
    let watcher_id = call.sandbox.watchers.add(watching, &session.shared(), pools)?;
    Ok(answer::message(&head, &CreateWatcherResponse { watcher_id }))
}

/// The changes since the last question.
pub(super) async fn changes(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let id = call.message::<OfWatcher>(&head, body).await?.into_id()?;
    let session = call.session()?;
    let watcher = call.sandbox.watchers.find(&id).ok_or_else(|| no_watcher(&id))?;
    let mut watching = watcher.lock().await;
    let changes = watching.since_last(&session.session, &mut call.caller.share).await?.into_iter();
    let events = changes.map(|change| FilesystemEvent::new(change, watching.root())).collect();
    Ok(answer::message(&head, &WatcherEvents { events }))
}

/// Ends a watcher.
pub(super) async fn remove(
    call: &mut DataCall,
    head: Head,
    body: Body,
) -> Result<Response, E2bError> {
    let id = call.message::<OfWatcher>(&head, body).await?.into_id()?;
    match call.sandbox.watchers.remove(&id) {
        true => Ok(answer::message(&head, &Empty {})),
        false => Err(no_watcher(&id)),
    }
}

fn no_watcher(id: &str) -> E2bError {
    let id: String = id.chars().take(64).collect();
    let message = format!(
        "there is no watcher {id:?} in this sandbox: it was removed, or was not asked for its changes for \
         10 minutes; create another one"
    );
    E2bError::new(ErrorKind::NotFound, message)
}
