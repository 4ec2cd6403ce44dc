//! Sessions of clients that speak a revision before 2026-07-28: whose they are, how many there may be, and
//! when somebody has left one for good.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};

/// Sessions of all clients.
const MOST: usize = 1024;

/// Sessions of one.
const MOST_OF_ONE: usize = 256;

/// A session lives for this much longer than the longest run, in which a client need not say anything.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);

/// The sessions of this server.
#[derive(Debug)]
pub(super) struct Sessions {
    manager: Arc<LocalSessionManager>,
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Debug)]
struct Known {
    client: Client,
    /// When it was last heard of.
    last: Instant,
}

impl Sessions {
    /// Of a server on which a program may run for `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        let mut manager = LocalSessionManager::default();
        let mut config = SessionConfig::default();
        config.keep_alive = Some(longest + KEPT_FOR);
        manager.session_config = config;
        Self { manager: Arc::new(manager), known: Mutex::default() }
    }

    /// What the protocol's implementation keeps of them.
    pub(super) fn manager(&self) -> Arc<LocalSessionManager> {
        Arc::clone(&self.manager)
    }

    /// Whether a client may have one more.
    pub(super) async fn has_room(&self, client: &Client) -> bool {
        let open = self.manager.sessions.read().await;
        let mut known = self.known();
        known.retain(|id, _| open.contains_key(id.as_str()));
        known.len() < MOST
            && known.values().filter(|known| known.client == *client).count() < MOST_OF_ONE
    }

    /// Notes that a client has a new one.
    pub(super) fn add(&self, id: &str, client: &Client) {
        let known = Known { client: client.clone(), last: Instant::now() };
        self.known().insert(id.to_owned(), known);
    }

    /// Whether a client may use a session, which is heard of by that. One that is not known here is left to
    /// the protocol's implementation, which does not know it either.
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

    /// Whether something was heard of a session since then.
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
        for number in 0..MOST_OF_ONE {
            sessions.add(&number.to_string(), &client);
        }
        // None of them is open.
        assert!(sessions.has_room(&client).await);
        assert!(sessions.known().is_empty());
    }
}
