//! The watchers of a sandbox, which keep changes until their client asks for them.
//!
//! Changes wait in the credit of their stream, so a watcher holds little; when more come, the agent says that some are lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use isolator_pool::lock::lock;
use isolator_pool::pool::pools::Pools;
use isolator_pool::pool::session::Session;
use isolator_pool::pool::session::agent::{AgentError, Entry, EntryKind, WatchEvent, Watcher};
use tokio::time::Instant;

use super::error::{E2bError, ErrorKind};
use crate::calls::budget::Share;
use crate::hex::hex;
use crate::sessions::OpenSession;
use crate::web::Refused;

/// How long a watcher is kept for a client that does not ask for its changes.
const UNUSED: Duration = Duration::from_secs(600);

/// Most watchers of a sandbox that are asked for their changes. When there are more, the one that was unused longest ends.
const MAX_WATCHERS: usize = 16;

/// Changes in one answer.
const MAX_CHANGES: usize = 10_000;

/// Bytes of the changes in one answer. Further ones wait for the next question.
const MAX_BYTES: usize = 1 << 20;

/// How long changes are collected for one answer, however fast others come.
const COLLECTING: Duration = Duration::from_secs(2);

/// Bytes of a change besides its texts.
const CHANGE_OVERHEAD: usize = 256;

/// How long changes are waited for that belong to something which the client has just done, and how long after the last one.
const FIRST: Duration = Duration::from_millis(100);
const FURTHER: Duration = Duration::from_millis(20);

/// Random bytes in the name of a watcher.
const ID_BYTES: usize = 8;

/// A watch that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    pub path: String,
    pub is_recursive: bool,
    /// Whether changes come with the entry that has changed.
    pub has_entries: bool,
}

/// A change below a folder that is watched.
#[derive(Debug)]
pub(super) struct Change {
    pub event: WatchEvent,
    /// The entry, if it is asked for and is still there.
    pub entry: Option<Entry>,
}

impl Change {
    /// The bytes that it takes, about.
    fn bytes(&self) -> usize {
        let target = |entry: &Entry| match &entry.kind {
            EntryKind::Link { target, .. } => target.len(),
            _ => 0,
        };
        let entry = self.entry.as_ref();
        let entry = entry.map_or(0, |it| it.path.len() + it.name.len() + target(it));
        CHANGE_OVERHEAD + self.event.path.len() + entry
    }
}

/// A watch of a folder.
#[derive(Debug)]
pub(super) struct Watching {
    watcher: Watcher,
    /// The path of the folder from the root.
    root: String,
    has_entries: bool,
    /// A change that has come and was not returned, because its future was dropped.
    pending: Option<WatchEvent>,
    /// Changes for the answer to the next question. They stay if that is not answered.
    collected: Vec<Change>,
    /// Why no more come after them.
    ended: Option<E2bError>,
    used: Instant,
}

/// A watcher, which one request can use at a time.
pub(super) type SharedWatching = Arc<tokio::sync::Mutex<Watching>>;

/// The watchers of a sandbox, by their names.
#[derive(Debug, Default)]
pub(super) struct Watchers(Arc<Mutex<HashMap<String, SharedWatching>>>);

impl Watching {
    /// Begins to watch a folder.
    ///
    /// # Errors
    ///
    /// When it is no folder, or can't be watched.
    pub(super) async fn begin(session: &Session, watched: Watched) -> Result<Self, E2bError> {
        let Watched { path, is_recursive, has_entries } = watched;
        // A link to a folder is followed.
        let listed = session.list_folder(&path, 1).await;
        if let Err(error @ (AgentError::NotFound(_) | AgentError::NotFolder(_))) = listed {
            return Err(E2bError::of_agent(error));
        }
        let root = session.stat(&path).await.map_err(E2bError::of_agent)?.path;
        let watcher = session.watch(&path, is_recursive).await.map_err(E2bError::of_agent)?;
        Ok(Self {
            watcher,
            root,
            has_entries,
            pending: None,
            collected: Vec::new(),
            ended: None,
            used: Instant::now(),
        })
    }

    /// The path of the folder from the root.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The next change. Dropping the future loses none.
    ///
    /// # Errors
    ///
    /// When no more come.
    pub(super) async fn next(&mut self, session: &Session) -> Result<Change, E2bError> {
        if self.pending.is_none() {
            let event = self.watcher.next().await;
            self.take(event)?;
        }
        self.described(session).await
    }

    /// The changes that have come since the last question. Dropping the future loses none.
    ///
    /// # Errors
    ///
    /// When no more come, or some of them are lost, and all before were returned.
    pub(super) async fn since_last(
        &mut self,
        session: &Session,
        share: &mut Share,
    ) -> Result<Vec<Change>, E2bError> {
        // For the changes and the answer that is made of them.
        if !share.grow(2 * MAX_BYTES) {
            return Err(E2bError::refused(Refused::TooMuchInMemory));
        }
        if self.ended.is_none()
            && let Err(error) = self.collect(session).await
        {
            self.ended = Some(error);
        }
        self.used = Instant::now();
        match self.ended.take_if(|_| self.collected.is_empty()) {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.collected)),
        }
    }

    async fn collect(&mut self, session: &Session) -> Result<(), E2bError> {
        let until = Instant::now() + COLLECTING;
        let mut patience = FIRST;
        let mut bytes: usize = self.collected.iter().map(Change::bytes).sum();
        while self.collected.len() < MAX_CHANGES && bytes < MAX_BYTES && Instant::now() < until {
            if self.pending.is_none() {
                let ready = self.watcher.next().now_or_never();
                let event = match ready {
                    Some(event) => event,
                    None => match tokio::time::timeout(patience, self.watcher.next()).await {
                        Ok(event) => event,
                        Err(_) => break,
                    },
                };
                self.take(event)?;
            }
            patience = FURTHER;
            let change = self.described(session).await?;
            bytes += change.bytes();
            self.collected.push(change);
        }
        Ok(())
    }

    fn take(&mut self, event: Option<Result<WatchEvent, AgentError>>) -> Result<(), E2bError> {
        let ended = || E2bError::new(ErrorKind::Conflict, "the watch has ended: watch again");
        self.pending = Some(event.ok_or_else(ended)?.map_err(E2bError::of_agent)?);
        Ok(())
    }

    /// The pending change, with its entry if that is asked for.
    async fn described(&mut self, session: &Session) -> Result<Change, E2bError> {
        let entry = match &self.pending {
            // The file may be gone again.
            Some(event) if self.has_entries => session.stat(&event.path).await.ok(),
            _ => None,
        };
        let missing = || E2bError::new(ErrorKind::Internal, "there is no change");
        Ok(Change { event: self.pending.take().ok_or_else(missing)?, entry })
    }
}

impl Watchers {
    /// Adds a watcher, and returns its name. It ends when its client does not use it.
    ///
    /// # Errors
    ///
    /// When the kernel returns no random bytes for the name, or requests use all of the watchers that a sandbox can have.
    pub(super) fn add(
        &self,
        watching: Watching,
        session: &Arc<OpenSession>,
        pools: &Pools,
    ) -> Result<String, E2bError> {
        let mut random = [0; ID_BYTES];
        getrandom::fill(&mut random).map_err(|error| {
            let message = format!("the kernel returned no random bytes: {error}");
            E2bError::new(ErrorKind::Internal, message)
        })?;
        let id = hex(&random);
        let watching = Arc::new(tokio::sync::Mutex::new(watching));
        {
            let mut all = lock(&self.0);
            if all.len() >= MAX_WATCHERS {
                // The agent watches no more than these, so some of them have ended.
                let used = |it: &SharedWatching| it.try_lock().map(|it| it.used).ok();
                let unused = all.iter().filter_map(|(id, it)| Some((used(it)?, id.clone()))).min();
                let Some((_, unused)) = unused else {
                    let message =
                        format!("a sandbox can have {MAX_WATCHERS} watchers: end one of them");
                    return Err(E2bError::new(ErrorKind::Exhausted, message));
                };
                all.remove(&unused);
            }
            all.insert(id.clone(), Arc::clone(&watching));
        }
        let unused = unused(Arc::downgrade(&watching));
        let (watchers, session, added) = (Arc::downgrade(&self.0), Arc::clone(session), id.clone());
        pools.track(async move {
            tokio::select! {
                () = unused => {}
                _ = session.session.ended() => {}
            }
            if let Some(watchers) = watchers.upgrade() {
                lock(&watchers).remove(&added);
            }
        });
        Ok(id)
    }

    pub(super) fn find(&self, id: &str) -> Option<SharedWatching> {
        lock(&self.0).get(id).cloned()
    }

    /// Ends a watcher. Returns whether it was there.
    pub(super) fn remove(&self, id: &str) -> bool {
        lock(&self.0).remove(id).is_some()
    }
}

/// Waits until a watcher was removed, or not used for so long that its client has most likely forgotten it.
async fn unused(watching: Weak<tokio::sync::Mutex<Watching>>) {
    let mut wait = UNUSED;
    while !wait.is_zero() {
        tokio::time::sleep(wait).await;
        let Some(watching) = watching.upgrade() else { return };
        // A request that uses it now has it until it is answered.
        let used = watching.lock().await.used;
        wait = UNUSED.saturating_sub(used.elapsed());
    }
}
