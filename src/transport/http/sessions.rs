//! Sessions of clients with a revision before 2026-07-28: whose they are, how many there can be, and when they were
//! last used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};

/// Most sessions of all clients.
const MAX_SESSIONS: usize = 1024;

/// Most sessions of one client.
const MAX_PER_CLIENT: usize = 256;

/// A session is kept for this much longer than the longest run, during which a client may send nothing.
const EXTRA_KEEP_ALIVE: Duration = Duration::from_secs(10 * 60);

/// The sessions of this server.
#[derive(Debug)]
pub(super) struct Sessions {
    manager: Arc<LocalSessionManager>,
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Debug)]
struct Known {
    client: Client,
    /// When it was last used.
    last: Instant,
}

impl Sessions {
    /// The sessions of a server on which a program can run for `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        let mut manager = LocalSessionManager::default();
        let mut config = SessionConfig::default();
        config.keep_alive = Some(longest + EXTRA_KEEP_ALIVE);
        manager.session_config = config;
        Self { manager: Arc::new(manager), known: Mutex::default() }
    }

    /// rmcp's session manager.
    pub(super) fn manager(&self) -> Arc<LocalSessionManager> {
        Arc::clone(&self.manager)
    }

    /// Whether a client can open another one.
    pub(super) async fn has_room(&self, client: &Client) -> bool {
        let open = self.manager.sessions.read().await;
        let mut known = self.known();
        known.retain(|id, _| open.contains_key(id.as_str()));
        known.len() < MAX_SESSIONS
            && known.values().filter(|known| known.client == *client).count() < MAX_PER_CLIENT
    }

    /// Notes that a client has a new one.
    pub(super) fn add(&self, id: &str, client: &Client) {
        let known = Known { client: client.clone(), last: Instant::now() };
        self.known().insert(id.to_owned(), known);
    }

    /// Whether a client can use a session, which counts as a use. An unknown one is left to rmcp, which does not know
    /// it either.
    pub(super) fn may_use(&self, id: &str, client: &Client) -> bool {
        match self.known().get_mut(id) {
            Some(known) if known.client == *client => {
                known.last = Instant::now();
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    /// Whether a session was used after `then`.
    pub(super) fn is_in_use_since(&self, id: &str, then: Instant) -> bool {
        self.known().get(id).is_some_and(|known| known.last > then)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        lock(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_its_client_s_alone() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let (one, two) = (Client::named("one"), Client::named("two"));
        sessions.add("a", &one);
        let then = Instant::now();
        assert!(!sessions.is_in_use_since("a", then));
        assert!(!sessions.may_use("a", &two) && !sessions.is_in_use_since("a", then));
        assert!(sessions.may_use("a", &one) && sessions.is_in_use_since("a", then));
        assert!(sessions.may_use("b", &two), "which is answered as unknown");
    }

    #[tokio::test]
    async fn sessions_that_are_closed_make_room() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let client = Client::named("one");
        for number in 0..MAX_PER_CLIENT {
            sessions.add(&number.to_string(), &client);
        }
        // None of them is open.
        assert!(sessions.has_room(&client).await);
        assert!(sessions.known().is_empty());
    }
}
