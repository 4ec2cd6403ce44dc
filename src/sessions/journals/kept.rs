//! The journals that this node keeps on the server, and which of them go when they take too much.

use std::collections::{HashMap, HashSet};

use isolator_pool::pool::admission::Client;
use tokio::time::Instant;

/// Bytes of a journal on the server besides its records.
const OVERHEAD: usize = 1024;

/// The journals of this node on the server.
pub(super) struct Kept {
    max: usize,
    journals: HashMap<String, Entry>,
    /// Bytes of each client. Those of a former process of this node are together, because their clients are not known.
    bytes: HashMap<Option<Client>, usize>,
    all: usize,
    writings: u64,
    /// Those that have to be removed there.
    leaving: HashSet<String>,
}

struct Entry {
    client: Option<Client>,
    bytes: usize,
    /// The number of its last writing, from 1; 0 if it was written by a former process.
    written: u64,
    /// When the server removes it.
    until: Instant,
}

impl Kept {
    /// For up to `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            journals: HashMap::new(),
            bytes: HashMap::new(),
            all: 0,
            writings: 0,
            leaving: HashSet::new(),
        }
    }

    /// Notes that a journal was written.
    pub(super) fn note(&mut self, name: String, bytes: usize, client: &Client, until: Instant) {
        self.forget(&name);
        self.leaving.remove(&name);
        self.writings += 1;
        let (client, written) = (Some(client.clone()), self.writings);
        self.add(name, Entry { client, bytes: bytes + OVERHEAD, written, until });
    }

    /// Notes a journal that a former process of this node has written. All of it counts.
    pub(super) fn note_former(&mut self, name: String, bytes: usize, until: Instant) {
        if !self.journals.contains_key(&name) && !self.leaving.contains(&name) {
            self.add(name, Entry { client: None, bytes, written: 0, until });
        }
    }

    fn add(&mut self, name: String, entry: Entry) {
        self.all += entry.bytes;
        *self.bytes.entry(entry.client.clone()).or_default() += entry.bytes;
        self.journals.insert(name, entry);
    }

    fn forget(&mut self, name: &str) {
        let Some(Entry { client, bytes, .. }) = self.journals.remove(name) else { return };
        self.all -= bytes;
        if let Some(of_client) = self.bytes.get_mut(&client) {
            *of_client -= bytes;
            if *of_client == 0 {
                self.bytes.remove(&client);
            }
        }
    }

    /// The journals that must be removed so that the others have room: of the client with the most bytes, those that were written
    /// longest ago. They stay among those until [`Self::are_removed`]. Some more go at once, so that this is rare.
    pub(super) fn make_room(&mut self) -> Vec<String> {
        if self.all > self.max {
            let removed = self.forget_oldest();
            self.leaving.extend(removed);
        }
        self.leaving.iter().cloned().collect()
    }

    /// Notes that the server has removed some of the journals that have to go.
    pub(super) fn are_removed(&mut self, removed: &[String]) {
        for name in removed {
            self.leaving.remove(name);
        }
    }

    fn forget_oldest(&mut self) -> Vec<String> {
        let now = Instant::now();
        let expired = self.journals.iter().filter(|(_, entry)| entry.until <= now);
        let expired: Vec<_> = expired.map(|(name, _)| name.clone()).collect();
        expired.iter().for_each(|name| self.forget(name));
        let mut removed = Vec::new();
        let enough = self.max - self.max / 8;
        while self.all > enough {
            let most = self.bytes.iter().max_by_key(|(_, bytes)| **bytes);
            let Some((client, bytes)) = most.map(|(client, bytes)| (client.clone(), *bytes)) else {
                break;
            };
            let own = self.journals.iter().filter(|(_, entry)| entry.client == client);
            let mut own: Vec<_> =
                own.map(|(name, entry)| (entry.written, entry.until, name.clone())).collect();
            own.sort_unstable();
            // After that, another client may have the most.
            let until = bytes - bytes / 8;
            for (_, _, name) in own {
                self.forget(&name);
                removed.push(name);
                let left = self.bytes.get(&client).copied().unwrap_or_default();
                if self.all <= enough || left <= until {
                    break;
                }
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_client_with_the_most_bytes_loses_its_oldest_journals() {
        let (one, other) = (Client::named("one"), Client::named("other"));
        let mut kept = Kept::new(100 * 2 * OVERHEAD);
        let until = Instant::now() + Duration::from_secs(60);
        kept.note("theirs".to_owned(), OVERHEAD, &other, until);
        for number in 0..99 {
            kept.note(format!("{number:02}"), OVERHEAD, &one, until);
        }
        kept.note("00".to_owned(), OVERHEAD, &one, until);
        assert!(kept.make_room().is_empty());
        kept.note("99".to_owned(), OVERHEAD, &one, until);
        let mut removed = kept.make_room();
        removed.sort_unstable();
        assert!(
            removed.first().is_some_and(|name| name == "01") && removed.len() < 20,
            "{removed:?}"
        );
        // Until the server has removed them, unless they are written again meanwhile.
        kept.note("01".to_owned(), 0, &one, until);
        assert_eq!(kept.make_room().len(), removed.len() - 1);
        kept.are_removed(&removed);
        assert!(!removed.iter().any(|name| name == "theirs" || name == "00" || name == "99"));
        assert!(kept.make_room().is_empty());
        // Those that have expired are not removed again.
        tokio::time::advance(Duration::from_secs(61)).await;
        for number in 0..20 {
            let until = Instant::now() + Duration::from_secs(60);
            kept.note(format!("new {number}"), OVERHEAD, &one, until);
        }
        assert!(kept.make_room().is_empty() && kept.journals.len() == 20);
    }

    #[tokio::test(start_paused = true)]
    async fn journals_of_a_former_process_count_and_those_that_end_soonest_go_first() {
        let mut kept = Kept::new(100 * OVERHEAD);
        let now = Instant::now();
        for number in 0..99 {
            let until = now + Duration::from_secs(1000 - number);
            kept.note_former(format!("old {number:02}"), OVERHEAD, until);
        }
        // What this process has written meanwhile is known better.
        kept.note("own".to_owned(), 0, &Client::named("one"), now);
        kept.note_former("own".to_owned(), 50 * OVERHEAD, now + Duration::from_secs(1));
        assert!(kept.make_room().is_empty());
        kept.note("next".to_owned(), 0, &Client::named("one"), now + Duration::from_secs(1));
        let mut removed = kept.make_room();
        removed.sort_unstable();
        assert!(removed.len() >= 12 && removed.last().is_some_and(|name| name == "old 98"));
        assert!(removed.iter().all(|name| name.starts_with("old ")), "{removed:?}");
    }
}
