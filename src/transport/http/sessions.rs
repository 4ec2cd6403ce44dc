//! Sessions of clients with a revision before 2026-07-28: whose they are, how many there can be, and when they were
//! last used.
//!
//! Most clients never end their session. So when there are too many, the one that was idle longest is closed; its client is
//! answered with 404 then, and opens another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use rmcp::transport::streamable_http_server::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::SessionConfig;

use super::manager::Manager;
use crate::node::{LostHandle, Node, Thing};

/// Most sessions of all clients.
const MAX_SESSIONS: usize = 1024;

/// Most sessions of one client.
const MAX_PER_CLIENT: usize = 256;

/// A session is kept for this much longer than the longest run, during which a client may send nothing.
const EXTRA_KEEP_ALIVE: Duration = Duration::from_secs(10 * 60);

/// The sessions of this server.
#[derive(Debug)]
pub(super) struct Sessions {
    manager: Arc<Manager>,
    known: Mutex<HashMap<String, KnownSession>>,
}

#[derive(Debug)]
struct KnownSession {
    client: Client,
    /// Whether its streams begin with an event without data, from which a client can resume them.
    is_primed: bool,
    /// When its last request began.
    began: Instant,
    /// When a request last ended.
    ended: Instant,
    /// Requests that are served, and streams that are open.
    in_use: usize,
}

/// The step before a client can open a session.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// This one must be closed before.
    Behind(String),
    /// All are in use.
    None,
}

/// A request of a session. While it lives, the session is in use.
#[derive(Debug)]
pub(super) struct Use {
    sessions: Arc<Sessions>,
    id: String,
    pub(super) is_primed: bool,
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(known) = self.sessions.known().get_mut(&self.id) {
            known.in_use -= 1;
            known.ended = Instant::now();
        }
    }
}

/// Whether a client can use a session.
#[derive(Debug)]
pub(super) enum SessionAccess {
    /// It can.
    Own(Use),
    /// It is another client's.
    Foreign,
    /// It is of another node, or was one of this node before it was started again.
    Lost(LostHandle),
    /// It is left to rmcp, which does not know it either.
    Unknown,
}

impl Sessions {
    /// The sessions of a node on which a program can run for `longest`.
    pub(super) fn new(longest: Duration, node: &Node) -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(longest + EXTRA_KEEP_ALIVE);
        let manager = Manager::new(config, node.clone());
        Self { manager: Arc::new(manager), known: Mutex::default() }
    }

    /// rmcp's session manager.
    pub(super) fn manager(&self) -> Arc<Manager> {
        Arc::clone(&self.manager)
    }

    /// Makes room for another session of a client. Returns whether there is some: none if all of the client's, or all that
    /// there can be, are in use.
    pub(super) async fn make_room(&self, client: &Client) -> bool {
        loop {
            let open = self.manager.local.sessions.read().await;
            self.known().retain(|id, _| open.contains_key(id.as_str()));
            drop(open);
            match self.room(client) {
                Room::Free => return true,
                Room::None => return false,
                Room::Behind(id) => {
                    if let Err(error) = self.manager.close_session(&id.into()).await {
                        tracing::warn!(%error, "an idle session could not be closed");
                    }
                }
            }
        }
    }

    fn room(&self, client: &Client) -> Room {
        let mut known = self.known();
        let own = known.values().filter(|known| known.client == *client).count();
        if own < MAX_PER_CLIENT && known.len() < MAX_SESSIONS {
            return Room::Free;
        }
        let can_go = |known: &KnownSession| {
            known.in_use == 0 && (own < MAX_PER_CLIENT || known.client == *client)
        };
        let idle = known.iter().filter(|(_, known)| can_go(known));
        let idlest = idle.min_by_key(|(_, known)| known.began.max(known.ended));
        let Some(idlest) = idlest.map(|(id, _)| id.clone()) else { return Room::None };
        // At once, for no request to begin to use it.
        known.remove(&idlest);
        Room::Behind(idlest)
    }

    /// Notes that a client has a new one.
    pub(super) fn add(&self, id: &str, client: &Client, is_primed: bool) {
        let now = Instant::now();
        let known =
            KnownSession { client: client.clone(), is_primed, began: now, ended: now, in_use: 0 };
        self.known().insert(id.to_owned(), known);
    }

    /// Lets a request of a client use a session, if it can.
    pub(super) fn enter(self: &Arc<Self>, id: &str, client: &Client) -> SessionAccess {
        match self.known().get_mut(id) {
            Some(known) if known.client == *client => {
                known.began = Instant::now();
                known.in_use += 1;
                let is_primed = known.is_primed;
                SessionAccess::Own(Use { sessions: Arc::clone(self), id: id.to_owned(), is_primed })
            }
            // The same as for one that is not known, so that no client learns which there are.
            other => match self.manager.node.lost(id, Thing::ProtocolSession) {
                Some(lost) => SessionAccess::Lost(lost),
                None if other.is_some() => SessionAccess::Foreign,
                None => SessionAccess::Unknown,
            },
        }
    }

    /// Whether a session was used after `then`.
    pub(super) fn is_used_since(&self, id: &str, then: Instant) -> bool {
        self.known().get(id).is_some_and(|known| known.began > then)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownSession>> {
        lock(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Arc<Sessions> {
        Arc::new(Sessions::new(Duration::from_secs(60), &Node::default()))
    }

    #[test]
    fn a_session_is_its_client_s_alone() {
        let sessions = sessions();
        let (one, two) = (Client::named("one"), Client::named("two"));
        sessions.add("a", &one, false);
        let then = Instant::now();
        assert!(!sessions.is_used_since("a", then));
        assert!(matches!(sessions.enter("a", &two), SessionAccess::Foreign));
        assert!(!sessions.is_used_since("a", then));
        assert!(matches!(sessions.enter("a", &one), SessionAccess::Own(_)));
        assert!(sessions.is_used_since("a", then));
        assert!(matches!(sessions.enter("b", &two), SessionAccess::Unknown));
    }

    #[test]
    fn a_node_says_the_same_of_a_session_of_another_client_and_of_one_that_it_does_not_know() {
        let node = Node::named("n1".parse().unwrap());
        let sessions = Arc::new(Sessions::new(Duration::from_secs(60), &node));
        let (one, two) = (Client::named("one"), Client::named("two"));
        let [known, unknown] = [(); 2].map(|()| node.new_handle().unwrap());
        sessions.add(&known, &one, false);
        let lost = |id: &str| match sessions.enter(id, &two) {
            SessionAccess::Lost(lost) => lost.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(lost(&known), lost(&unknown));
        assert!(matches!(sessions.enter(&known, &one), SessionAccess::Own(_)));
    }

    #[tokio::test]
    async fn sessions_that_are_closed_make_room() {
        let sessions = sessions();
        let client = Client::named("one");
        for number in 0..MAX_PER_CLIENT {
            sessions.add(&number.to_string(), &client, false);
        }
        // None of them is open.
        assert!(sessions.make_room(&client).await);
        assert!(sessions.known().is_empty());
    }

    #[test]
    fn the_session_that_was_idle_longest_goes_and_none_in_use() {
        let sessions = sessions();
        let name = |client: usize| Client::named(&client.to_string());
        let per_client = MAX_PER_CLIENT / 2;
        let clients = MAX_SESSIONS / per_client;
        for client in 0..clients {
            for number in 0..per_client {
                sessions.add(&format!("{client}-{number}"), &name(client), false);
            }
        }
        // All there can be, of clients that could have more.
        let used = sessions.enter("0-0", &name(0));
        drop(sessions.enter("0-1", &name(0)));
        assert_eq!(sessions.room(&name(clients)), Room::Behind("0-2".to_owned()));
        assert_eq!(sessions.room(&name(clients)), Room::Free, "one is gone");

        // A client with all that it can have loses one of its own.
        for number in per_client..MAX_PER_CLIENT {
            sessions.add(&format!("7-{number}"), &name(7), false);
        }
        assert_eq!(sessions.room(&name(7)), Room::Behind("7-0".to_owned()));
        sessions.add("7-0", &name(7), false);
        let all: Vec<_> =
            (0..MAX_PER_CLIENT).map(|it| sessions.enter(&format!("7-{it}"), &name(7))).collect();
        assert_eq!(sessions.room(&name(7)), Room::None);
        drop(all);
        assert!(matches!(sessions.room(&name(7)), Room::Behind(_)));
        drop(used);
    }
}
