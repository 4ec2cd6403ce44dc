//! The registry of all sessions of a server: it evicts sessions, and ends each when it expires.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::counts::Count;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::SessionError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::NoSession;
use super::gone::{Tombstones, Why, gone_of};
use super::journals::Journals;
use super::lifetime::{AtDeadline, Deadline, EndKind, NextEnd, TooLate};
use super::open::{InUse, OpenSession};
use crate::node::{Node, Thing};
use crate::notice::Notice;

/// How often an expired session that is in use is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The sessions of a server, open and gone.
#[derive(Default)]
pub(crate) struct Registry {
    /// The node whose name the handles have.
    pub(super) node: Node,
    pub(super) entries: Mutex<Records>,
    /// The journals that are kept on a server.
    pub(super) journals: Journals,
    /// Bytes that all of them may take.
    pub(super) most_memory: AtomicU64,
    pub(super) opened: Count,
    pub(super) evicted: Count,
    /// Sessions that have ended, by [`Why::KINDS`].
    pub(super) ended: [Count; Why::KINDS.len()],
    pub(super) undone: Count,
    pub(super) replayed: Count,
    pub(super) files_read: Count,
    /// The notice that the server is about to stop, and all sessions with it.
    pub(super) notice: Notice,
    /// Cancelled when the server stops.
    pub(super) release: CancellationToken,
}

#[derive(Default)]
pub(super) struct Records {
    pub(super) open: HashMap<String, Arc<OpenSession>>,
    /// The clients of sessions that are being opened.
    pub(super) opening: Vec<Client>,
    pub(super) gone: Tombstones,
}

/// Room for a session that is being opened; released when dropped.
pub(super) struct Reservation {
    pub(super) registry: Arc<Registry>,
    pub(super) client: Client,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut entries = lock(&self.registry.entries);
        if let Some(at) = entries.opening.iter().position(|client| *client == self.client) {
            entries.opening.swap_remove(at);
        }
    }
}

/// A session that was ended to make room for others.
pub(crate) struct Evicted {
    pub(super) session: Arc<OpenSession>,
    pub(super) why: Why,
}

/// A condition that keeps a session from being ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unless {
    Never,
    /// A call that uses it.
    InUse,
    /// It ends later, because its client has set another deadline.
    NotDue,
}

impl Registry {
    /// Ends sessions until all together take no more memory than they may: those of the client with the most memory, the longest
    /// unused first. Sessions that are in use stay, and so do those of clients with less than their share. Returns those that have
    /// ended.
    pub(super) fn keep_to_memory(&self) -> Vec<Evicted> {
        let most = self.most_memory.load(Ordering::Relaxed);
        let mut evicted = Vec::new();
        loop {
            let entries = lock(&self.entries);
            let mut of_clients: HashMap<&Client, u64> = HashMap::new();
            for session in entries.open.values() {
                *of_clients.entry(&session.client).or_default() += session.memory();
            }
            let total: u64 = of_clients.values().sum();
            let share = total / of_clients.len().max(1) as u64;
            let unused = entries.open.values().filter(|session| !session.is_in_use());
            let heaviest = unused.map(|session| of_clients[&session.client]).max();
            let heaviest = heaviest.filter(|memory| total > most && *memory >= share);
            let loser =
                longest_unused(&entries, |session| Some(of_clients[&session.client]) == heaviest);
            let loser = loser.filter(|_| heaviest.is_some());
            drop(of_clients);
            drop(entries);
            let Some(session) = loser else { return evicted };
            let why = Why::Memory(most >> 20);
            if self.end(&session, why.clone(), Unless::InUse) {
                evicted.push(Evicted { session, why });
            }
        }
    }

    /// The session of a client, for a call, also if it is paused.
    ///
    /// # Errors
    ///
    /// When the client has none with this handle.
    pub(crate) fn take(&self, client: &Client, id: &str) -> Result<InUse, NoSession> {
        let entries = lock(&self.entries);
        let open = entries.open.get(id).filter(|session| session.client == *client);
        match open {
            Some(session) => {
                // Its watcher has not seen it yet, or waits for the last call.
                let ended = session.session.end_reason().map(Why::Ended);
                let too_old =
                    || session.is_too_old().then_some(Why::TooOld(session.lifetime.max_age));
                match ended.or_else(too_old) {
                    None => Ok(InUse::new(Arc::clone(session))),
                    Some(why) => Err(NoSession::Gone(Box::new(gone_of(session, why)))),
                }
            }
            None => match entries.gone.find(client, id) {
                Some(gone) => Err(NoSession::Gone(Box::new(gone.clone()))),
                None => Err(match self.node.lost(id, Thing::Session) {
                    Some(lost) => NoSession::Lost(Box::new(lost)),
                    None => NoSession::Unknown,
                }),
            },
        }
    }

    /// The node whose name the handles have.
    pub(crate) const fn node(&self) -> &Node {
        &self.node
    }

    /// Whether a session with this handle is open, whichever client has it.
    pub(crate) fn is_open(&self, id: &str) -> bool {
        lock(&self.entries).open.contains_key(id)
    }

    /// Why the session with this handle is gone, whichever client had it. `None` if it is open or not known.
    pub(crate) fn why_gone(&self, id: &str) -> Option<Why> {
        lock(&self.entries).gone.of(id).map(|gone| gone.why.clone())
    }

    /// Sets the deadline of a session that is in use, and lets it go on if it was paused. One that only `extends` its life never
    /// shortens it.
    ///
    /// # Errors
    ///
    /// When it would be older than a session can be.
    pub(crate) fn set_deadline(
        &self,
        session: &InUse,
        deadline: Deadline,
        extends: bool,
    ) -> Result<(), TooLate> {
        session.lifetime.set_deadline(deadline, extends)
    }

    /// Ends a session, and remembers why. Returns whether it has ended: with the lock, no call can begin to use it meanwhile.
    pub(super) fn end(&self, session: &Arc<OpenSession>, why: Why, unless: Unless) -> bool {
        let mut entries = lock(&self.entries);
        let stays = match unless {
            Unless::Never => false,
            Unless::InUse => session.is_in_use(),
            Unless::NotDue => session.next_end().at > Instant::now(),
        };
        if stays {
            return false;
        }
        if entries.open.remove(&session.id).is_some() {
            tracing::info!(client = %session.client, %why, "a session has ended");
            let evicted = matches!(why, Why::Memory(_) | Why::TooMany(_) | Why::TooManyOfClient(_));
            self.evicted.add(u64::from(evicted));
            self.ended[why.kind()].add(1);
            entries.gone.add(gone_of(session, why));
        }
        drop(entries);
        session.session.close();
        self.journals.ended(session);
        true
    }
}

/// The session that was unused longest and is not in use.
pub(super) fn longest_unused(
    entries: &Records,
    may_lose: impl Fn(&OpenSession) -> bool,
) -> Option<Arc<OpenSession>> {
    let unused = entries.open.values().filter(|session| !session.is_in_use() && may_lose(session));
    unused.min_by_key(|session| *lock(&session.used)).cloned()
}

/// Ends a session when it is time, and notes its end whatever the reason.
pub(super) async fn watch(registry: Arc<Registry>, session: Arc<OpenSession>) {
    loop {
        let NextEnd { at, why, kind } = session.next_end();
        tokio::select! {
            reason = session.session.ended() => {
                registry.end(&session, Why::Ended(reason), Unless::Never);
                return;
            }
            () = session.session.measured() => {
                // Their clients learn of it when they use them.
                let _ = registry.keep_to_memory();
                continue;
            }
            () = session.lifetime.changed() => continue,
            () = tokio::time::sleep_until(at) => {}
        }
        match kind {
            EndKind::Deadline(AtDeadline::Pause) => {
                if session.lifetime.pause_if_due(at) {
                    freeze(&session).await;
                }
            }
            EndKind::Deadline(AtDeadline::End) => {
                if registry.end(&session, why, Unless::NotDue) {
                    return;
                }
            }
            EndKind::IfUnused if session.is_in_use() => tokio::time::sleep(LOOK_AGAIN).await,
            EndKind::IfUnused => {
                if session.next_end().at <= Instant::now()
                    && registry.end(&session, why, Unless::InUse)
                {
                    return;
                }
            }
        }
    }
}

/// Freezes a session that is paused when its cell has ended, unless its client lets it go on before.
async fn freeze(session: &OpenSession) {
    loop {
        tokio::select! {
            frozen = session.session.freeze() => match frozen {
                // A machine that is busy freezes it later.
                Ok(_) => return,
                Err(SessionError::Busy) => tokio::time::sleep(LOOK_AGAIN).await,
                Err(error) => {
                    tracing::debug!(%error, "a paused session was not frozen");
                    return;
                }
            },
            () = session.lifetime.resumed() => return,
        }
    }
}
