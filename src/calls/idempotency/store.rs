//! The keys of all clients: calls that run, answers that are kept, and marks of those that are not.
//!
//! An entry begins as a running call. When that ends, its answer is kept; when the time or the bytes for that are used up, a mark
//! stays for longer. Both are dropped in the order in which they came: those of the client itself if it has more than its
//! share, or else those of the client with the most.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::admission::Client;
use tokio::time::Instant;

use super::key::{Key, RequestDigest};
use super::running::{AnyAnswer, Running};
use super::{Asked, Bounds, KeyRefusal};

/// Longest time of marks. A client that sends a call again does so much sooner.
const MARKED_FOR: Duration = Duration::from_hours(24);

/// Maximum number of marks of all clients, and of one. Each takes about 200 bytes.
pub(super) const MAX_MARKS: usize = 32 << 10;
pub(super) const MAX_MARKS_OF_ONE: usize = MAX_MARKS / 2;

/// Maximum number of calls with keys that one client has running or waiting.
const MAX_RUNNING_OF_ONE: usize = 4096;

/// Bytes of an answer besides its own weight.
const OVERHEAD: usize = 512;

/// How often entries of all clients are looked at whose time is over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The entries of all clients.
#[derive(Default)]
pub(super) struct Store {
    bounds: Bounds,
    ids: HashMap<Client, u64>,
    clients: HashMap<u64, OfClient>,
    next_id: u64,
    /// Clients by the bytes of their answers, and by the number of their marks.
    by_bytes: Ranked,
    by_marks: Ranked,
    swept: Option<Instant>,
}

struct OfClient {
    client: Client,
    entries: HashMap<Key, Entry>,
    running: usize,
    /// Keys of kept answers, the oldest first, with the time of the answer.
    kept: VecDeque<(Key, Instant)>,
    bytes: usize,
    /// Keys of marks, likewise.
    marks: VecDeque<(Key, Instant)>,
}

struct Entry {
    digest: RequestDigest,
    state: EntryState,
}

enum EntryState {
    Running(Running),
    Kept(AnyAnswer, usize),
    /// It has run, or may have, and there is no answer.
    Marked(Mark),
}

/// The end of a call whose answer is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It has run.
    Ran,
    /// It was ended, and may have run in part.
    Ended,
}

/// An entry as a call finds it.
pub(super) enum Found {
    /// There is none, so this call is the first. It has been added as running.
    First,
    Running(Running),
    Kept(AnyAnswer),
}

/// Something of which clients have different amounts.
#[derive(Default)]
struct Ranked {
    all: usize,
    by_amount: BTreeSet<(usize, u64)>,
}

impl Ranked {
    fn change(&mut self, id: u64, from: usize, to: usize) {
        self.by_amount.remove(&(from, id));
        self.all = self.all - from + to;
        if to > 0 {
            self.by_amount.insert((to, id));
        }
    }

    /// The client with the most, after how much it has.
    fn greatest(&self) -> Option<(usize, u64)> {
        self.by_amount.last().copied()
    }
}

impl Store {
    /// Finds the entry of a call, or adds it with `running`.
    ///
    /// # Errors
    ///
    /// When the call can't be served with this key.
    pub(super) fn begin(
        &mut self,
        asked: &Asked,
        running: impl FnOnce() -> Running,
    ) -> Result<Found, KeyRefusal> {
        self.sweep();
        let id = self.id(&asked.client);
        let Some(of) = self.clients.get_mut(&id) else { return Ok(Found::First) };
        match of.entries.get(&asked.key) {
            Some(entry) if entry.digest != asked.digest => Err(KeyRefusal::OtherRequest),
            Some(Entry { state: EntryState::Running(running), .. }) => {
                Ok(Found::Running(running.clone()))
            }
            Some(Entry { state: EntryState::Kept(answer, _), .. }) => {
                Ok(Found::Kept(Arc::clone(answer)))
            }
            Some(Entry { state: EntryState::Marked(mark), .. }) => Err((*mark).into()),
            None if of.running >= MAX_RUNNING_OF_ONE => {
                Err(KeyRefusal::TooManyRunning(MAX_RUNNING_OF_ONE))
            }
            None => {
                of.running += 1;
                let entry = Entry { digest: asked.digest, state: EntryState::Running(running()) };
                of.entries.insert(asked.key, entry);
                Ok(Found::First)
            }
        }
    }

    /// The call has not run, so the next one with its key is the first.
    pub(super) fn remove(&mut self, asked: &Asked) {
        let id = self.id(&asked.client);
        if let Some(of) = self.clients.get_mut(&id) {
            of.entries.remove(&asked.key);
            of.running -= 1;
        }
        self.forget_if_empty(id);
    }

    /// The call has ended with an answer, which is kept if there is room.
    pub(super) fn keep(&mut self, asked: &Asked, answer: AnyAnswer, weight: usize) {
        let weight = weight.saturating_add(OVERHEAD);
        let Bounds { all, of_one, .. } = self.bounds;
        if weight > all.min(of_one) {
            return self.mark(asked, Mark::Ran);
        }
        let id = self.id(&asked.client);
        let Some(of) = self.clients.get_mut(&id) else { return };
        let Some(entry) = of.entries.get_mut(&asked.key) else { return };
        entry.state = EntryState::Kept(answer, weight);
        of.running -= 1;
        of.kept.push_back((asked.key, Instant::now()));
        let before = of.bytes;
        of.bytes += weight;
        self.by_bytes.change(id, before, before + weight);
        self.drop_answers();
    }

    /// Uses other bounds from now on.
    pub(super) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.drop_answers();
    }

    /// Drops answers until the rest is within the bounds.
    fn drop_answers(&mut self) {
        let Bounds { all, of_one, .. } = self.bounds;
        // If any client has too much, the one with the most has.
        while let Some((most, id)) = self.by_bytes.greatest()
            && (most > of_one || self.by_bytes.all > all)
        {
            self.drop_answer(id);
        }
    }

    /// The call has ended without an answer that could be kept.
    pub(super) fn mark(&mut self, asked: &Asked, mark: Mark) {
        let id = self.id(&asked.client);
        let Some(of) = self.clients.get_mut(&id) else { return };
        of.running -= 1;
        self.add_mark(id, asked.key, mark);
    }

    /// The oldest answer of a client is replaced by a mark.
    fn drop_answer(&mut self, id: u64) {
        let Some(of) = self.clients.get_mut(&id) else { return };
        let Some((key, _)) = of.kept.pop_front() else { return };
        if let Some(Entry { state: EntryState::Kept(_, weight), .. }) = of.entries.get(&key) {
            let before = of.bytes;
            of.bytes -= weight;
            self.by_bytes.change(id, before, of.bytes);
        }
        self.add_mark(id, key, Mark::Ran);
    }

    fn add_mark(&mut self, id: u64, key: Key, mark: Mark) {
        let Some(of) = self.clients.get_mut(&id) else { return };
        let Some(entry) = of.entries.get_mut(&key) else { return };
        entry.state = EntryState::Marked(mark);
        of.marks.push_back((key, Instant::now()));
        let marks = of.marks.len();
        self.by_marks.change(id, marks - 1, marks);
        if marks > MAX_MARKS_OF_ONE {
            self.drop_mark(id);
        }
        while self.by_marks.all > MAX_MARKS {
            let Some((_, greatest)) = self.by_marks.greatest() else { break };
            self.drop_mark(greatest);
        }
    }

    /// The oldest mark of a client is dropped.
    fn drop_mark(&mut self, id: u64) {
        let Some(of) = self.clients.get_mut(&id) else { return };
        let Some((key, _)) = of.marks.pop_front() else { return };
        of.entries.remove(&key);
        let marks = of.marks.len();
        // Maps keep the room that they once needed.
        if of.entries.capacity() > 64 && of.entries.len() < of.entries.capacity() / 4 {
            of.entries.shrink_to_fit();
        }
        self.by_marks.change(id, marks + 1, marks);
        self.forget_if_empty(id);
    }

    /// Drops what is older than it may be, once in a while.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        if self.swept.is_some_and(|swept| now < swept + SWEEP_EVERY) {
            return;
        }
        self.swept = Some(now);
        let is_over = |first: Option<&(Key, Instant)>, time: Duration| {
            first.is_some_and(|(_, since)| now.duration_since(*since) >= time)
        };
        let keep_for = self.bounds.keep_for;
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            while self.clients.get(&id).is_some_and(|of| is_over(of.kept.front(), keep_for)) {
                self.drop_answer(id);
            }
            while self.clients.get(&id).is_some_and(|of| is_over(of.marks.front(), MARKED_FOR)) {
                self.drop_mark(id);
            }
        }
    }

    /// Number of kept answers, and their bytes.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.clients.values().map(|of| of.kept.len()).sum(), self.by_bytes.all)
    }

    /// The number of a client.
    fn id(&mut self, client: &Client) -> u64 {
        if let Some(id) = self.ids.get(client) {
            return *id;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.ids.insert(client.clone(), id);
        let of = OfClient {
            client: client.clone(),
            entries: HashMap::new(),
            running: 0,
            kept: VecDeque::new(),
            bytes: 0,
            marks: VecDeque::new(),
        };
        self.clients.insert(id, of);
        id
    }

    fn forget_if_empty(&mut self, id: u64) {
        if self.clients.get(&id).is_some_and(|of| of.entries.is_empty())
            && let Some(of) = self.clients.remove(&id)
        {
            self.ids.remove(&of.client);
        }
    }

    /// Number of entries of all clients.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.clients.values().map(|of| of.entries.len()).sum()
    }
}
