//! Builds that are under way, what came of those before, and who waits for them.
//!
//! For each set there is one build at a time, however many ask. It belongs to nobody who asks: it goes on when they go
//! away, because the next one who asks needs it, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::packages::asked::Key;
use crate::packages::refusal::Refusal;
use crate::packages::store::StoredSet;

/// Builds that run or wait for their turn.
pub(super) const MOST_BUILDS: usize = 32;

/// Builds that have begun, also those that are still looked for in the store. Where builds wait for their turn, the clients
/// with many make room for those with few, so this is only so large that clients with many don't keep others out.
const MOST_BEGUN: usize = 4 * MOST_BUILDS;

/// Calls that wait for builds.
const MOST_WAITERS: usize = 256;

/// How long a failed build is remembered: twice as long after each one, up to a bound.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const FIRST_PAUSE_IF_LASTING: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Sets and failures that are remembered. The rest is found again in the store, or with another try.
const MOST_REMEMBERED: usize = 1024;

/// A set that was there when it was last looked for.
#[derive(Debug)]
pub(super) struct Ready {
    /// The set.
    pub set: StoredSet,
    /// Digest of the image for which it was built or found, if it was known.
    pub image: Option<String>,
}

/// What came of a build.
pub(super) type Made = Result<Arc<Ready>, Refusal>;

/// Where a build is.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// What is being done, in a line for people; empty while the set is looked for, which takes a moment.
    Doing(String),
    /// It has ended.
    Done(Made),
}

/// What is known of a set.
struct Entry {
    state: State,
    /// Builds that failed, in a row.
    failures: u32,
    /// When it was asked for last.
    used: Instant,
}

enum State {
    /// A task builds it. It holds the other end.
    Building {
        step: watch::Receiver<Step>,
        /// Who has asked for it, and began it.
        client: Client,
        /// All who have asked for it.
        askers: watch::Sender<Vec<Client>>,
    },
    /// It was there.
    Ready(Arc<Ready>),
    /// It was not built.
    Failed { why: Refusal, since: Instant },
}

/// What an operator is told of a set.
pub(super) enum Known {
    /// Nothing yet.
    Nothing,
    /// It is being built; the step.
    Building(String),
    /// It is there.
    Ready(Arc<Ready>),
    /// It was not built.
    Failed(Refusal),
}

/// What the task of a build has of those who wait for it.
pub(super) struct Begun {
    /// Where it tells its steps.
    pub step: watch::Sender<Step>,
    /// The clients that have asked for it so far, each once.
    pub askers: watch::Receiver<Vec<Client>>,
}

/// What somebody who asks for a set gets.
pub(super) enum Joined {
    /// The set.
    Ready(Arc<Ready>),
    /// A place among those who wait for it.
    Waiting(Waiting),
    /// The same, and what the task has that now has to be started.
    Begun(Waiting, Begun),
}

/// All builds; one for a server.
pub(super) struct Jobs {
    of_one_builds: usize,
    of_one_waiters: usize,
    entries: Mutex<HashMap<Key, Entry>>,
    waiters: Arc<Mutex<HashMap<Client, usize>>>,
}

/// A place among those who wait for a build; given back when dropped.
pub(super) struct Waiting {
    /// How far the build is.
    pub step: watch::Receiver<Step>,
    client: Client,
    waiters: Arc<Mutex<HashMap<Client, usize>>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = lock(&self.waiters);
        if let Some(own) = waiters.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                waiters.remove(&self.client);
            }
        }
    }
}

impl Jobs {
    /// For one client, or for several, of which each can have half.
    pub(super) fn new(has_one_client: bool) -> Self {
        let of_one = |all: usize| if has_one_client { all } else { all / 2 };
        Self {
            of_one_builds: of_one(MOST_BUILDS),
            of_one_waiters: of_one(MOST_WAITERS),
            entries: Mutex::default(),
            waiters: Arc::default(),
        }
    }

    /// Asks for a set that fits to `image`, if that is known. A build that failed a moment ago is not tried again, unless `again`.
    ///
    /// # Errors
    ///
    /// When it failed a moment ago, or too many wait.
    pub(super) fn join(
        &self,
        key: &Key,
        client: &Client,
        image: Option<&str>,
        again: bool,
    ) -> Result<Joined, Refusal> {
        let mut entries = lock(&self.entries);
        let mut failures = 0;
        if let Some(entry) = entries.get_mut(key) {
            entry.used = Instant::now();
            failures = entry.failures;
            match &entry.state {
                State::Ready(ready) if is_for(ready, image) => {
                    return Ok(Joined::Ready(Arc::clone(ready)));
                }
                // A task that is gone without a word has nothing to wait for.
                State::Building { step, askers, .. } if step.has_changed().is_ok() => {
                    let waiting = self.wait(client, step.clone())?;
                    askers.send_if_modified(|askers| {
                        let is_new = !askers.contains(client);
                        if is_new {
                            askers.push(client.clone());
                        }
                        is_new
                    });
                    return Ok(Joined::Waiting(waiting));
                }
                State::Failed { why, since } if !again => {
                    let (ago, pause) = (since.elapsed(), pause(failures, why));
                    if ago < pause {
                        let first = Box::new(why.clone());
                        return Err(Refusal::FailedBefore { first, ago, again: pause - ago });
                    }
                }
                _ => {}
            }
        }
        let building = |of: Option<&Client>| {
            let is_such = |entry: &&Entry| match &entry.state {
                State::Building { client, .. } => of.is_none_or(|of| of == client),
                _ => false,
            };
            entries.values().filter(is_such).count()
        };
        let (waiting, own) = (building(None), building(Some(client)));
        if is_too_much(waiting, MOST_BEGUN, own, self.of_one_builds) {
            return Err(Refusal::Busy { waiting, what: "sets of packages are being built" });
        }
        let (sender, step) = watch::channel(Step::Doing(String::new()));
        let waiting = self.wait(client, step.clone())?;
        let askers = watch::Sender::new(vec![client.clone()]);
        let begun = Begun { step: sender, askers: askers.subscribe() };
        let state = State::Building { step, client: client.clone(), askers };
        entries.insert(key.clone(), Entry { state, failures, used: Instant::now() });
        forget_some(&mut entries);
        Ok(Joined::Begun(waiting, begun))
    }

    /// Notes that a set is there, unless something is known of it.
    pub(super) fn found(&self, key: &Key, ready: Arc<Ready>) -> bool {
        let mut entries = lock(&self.entries);
        if entries.contains_key(key) {
            return false;
        }
        let entry = Entry { state: State::Ready(ready), failures: 0, used: Instant::now() };
        entries.insert(key.clone(), entry);
        forget_some(&mut entries);
        true
    }

    /// Notes what came of a build, and tells those who wait. Returns whether a failure is the first in a row.
    pub(super) fn end(&self, key: &Key, made: Made, waiters: &watch::Sender<Step>) -> bool {
        let mut entries = lock(&self.entries);
        let before = entries.get(key).map_or(0, |entry| entry.failures);
        match &made {
            Ok(ready) => {
                let state = State::Ready(Arc::clone(ready));
                entries.insert(key.clone(), Entry { state, failures: 0, used: Instant::now() });
            }
            Err(why) if why.is_remembered() => {
                let state = State::Failed { why: why.clone(), since: Instant::now() };
                let failures = before.saturating_add(1);
                entries.insert(key.clone(), Entry { state, failures, used: Instant::now() });
            }
            Err(_) => {
                entries.remove(key);
            }
        }
        waiters.send_replace(Step::Done(made));
        before == 0
    }

    /// Forgets that a set was there, unless another was found meanwhile.
    pub(super) fn lost(&self, key: &Key, lost: &Arc<Ready>) {
        let mut entries = lock(&self.entries);
        let is_same =
            |entry: &Entry| matches!(&entry.state, State::Ready(ready) if Arc::ptr_eq(ready, lost));
        if entries.get(key).is_some_and(is_same) {
            entries.remove(key);
        }
    }

    /// Forgets that sets with this hash were there.
    pub(super) fn removed(&self, hash: &str) {
        let mut entries = lock(&self.entries);
        entries.retain(
            |_, entry| !matches!(&entry.state, State::Ready(ready) if ready.set.hash == hash),
        );
    }

    /// The hashes of the sets that were there.
    pub(super) fn ready(&self) -> Vec<String> {
        let hash = |entry: &Entry| match &entry.state {
            State::Ready(ready) => Some(ready.set.hash.clone()),
            _ => None,
        };
        lock(&self.entries).values().filter_map(hash).collect()
    }

    /// What is known of a set.
    pub(super) fn known(&self, key: &Key) -> Known {
        match lock(&self.entries).get(key).map(|entry| &entry.state) {
            None => Known::Nothing,
            Some(State::Building { step, .. }) => match &*step.borrow() {
                Step::Doing(line) => Known::Building(line.clone()),
                Step::Done(_) => Known::Nothing,
            },
            Some(State::Ready(ready)) => Known::Ready(Arc::clone(ready)),
            Some(State::Failed { why, .. }) => Known::Failed(why.clone()),
        }
    }

    /// How long a failure of a set is still remembered, if there is one.
    pub(super) fn pause_left(&self, key: &Key) -> Option<Duration> {
        let entries = lock(&self.entries);
        let entry = entries.get(key)?;
        let State::Failed { why, since } = &entry.state else { return None };
        pause(entry.failures, why).checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// How many builds run or wait for their turn.
    pub(super) fn building(&self) -> usize {
        let entries = lock(&self.entries);
        entries.values().filter(|entry| matches!(entry.state, State::Building { .. })).count()
    }

    fn wait(&self, client: &Client, step: watch::Receiver<Step>) -> Result<Waiting, Refusal> {
        let mut waiters = lock(&self.waiters);
        let waiting = waiters.values().sum();
        let own = waiters.get(client).copied().unwrap_or_default();
        if is_too_much(waiting, MOST_WAITERS, own, self.of_one_waiters) {
            return Err(Refusal::Busy { waiting, what: "calls wait for sets of packages" });
        }
        *waiters.entry(client.clone()).or_default() += 1;
        Ok(Waiting { step, client: client.clone(), waiters: Arc::clone(&self.waiters) })
    }
}

/// Whether a client that has `own` of `all` can't have one more. A client that has none always can, however many others have.
fn is_too_much(all: usize, most: usize, own: usize, most_of_one: usize) -> bool {
    own >= most_of_one || own > 0 && all >= most
}

/// Whether a set still fits. Where the image is not known now, it is the one of before.
fn is_for(ready: &Ready, image: Option<&str>) -> bool {
    match (&ready.image, image) {
        (Some(then), Some(now)) => then == now,
        _ => true,
    }
}

/// How long a failure is remembered after this many.
fn pause(failures: u32, why: &Refusal) -> Duration {
    let is_lasting = match why {
        Refusal::Failed { is_lasting, .. } => *is_lasting,
        // It would be downloaded again only to see that.
        Refusal::TooLarge { .. } => true,
        _ => false,
    };
    let first = if is_lasting { FIRST_PAUSE_IF_LASTING } else { FIRST_PAUSE };
    let doubled = first * 2_u32.saturating_pow(failures.saturating_sub(1).min(8));
    doubled.min(LONGEST_PAUSE)
}

/// Forgets what nobody has asked for in the longest time, if there is too much.
fn forget_some(entries: &mut HashMap<Key, Entry>) {
    while entries.len() > MOST_REMEMBERED {
        let is_over = |entry: &Entry| !matches!(entry.state, State::Building { .. });
        let over = entries.iter().filter(|(_, entry)| is_over(entry));
        let Some((oldest, _)) = over.min_by_key(|(_, entry)| entry.used) else { return };
        let oldest = oldest.clone();
        entries.remove(&oldest);
    }
}
