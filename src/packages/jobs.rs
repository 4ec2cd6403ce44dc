//! The jobs that build sets: those that run, the results of those before, and the requests that wait for them.
//!
//! There is one build of a set at a time, however many requests ask for it. It goes on when they are cancelled, because the next
//! request for the set needs it, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::engine::Progress;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::packages::asked::Key;
use crate::packages::refusal::Refusal;
use crate::packages::store::StoredSet;

/// Builds that run or wait for their turn.
pub(super) const MOST_BUILDS: usize = 32;

/// Builds that have begun, also those whose sets are still looked for in the store. In the queue for turns, clients with many builds
/// make room for those with few, so this limit only has to be too large for clients with many to keep others out.
const MOST_BEGUN: usize = 4 * MOST_BUILDS;

/// Calls that wait for builds.
const MOST_WAITERS: usize = 256;

/// The time that a failed build is remembered: twice as long after each failure, up to a bound.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const FIRST_PAUSE_IF_LASTING: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Sets and failures that are remembered. Others are found again in the store, or with another try.
const MOST_REMEMBERED: usize = 1024;

/// Bytes of the texts of those that are remembered. A request of a program can have 64 KiB.
const MOST_REMEMBERED_BYTES: usize = 4 << 20;

/// A set that was there when it was last looked for.
#[derive(Debug)]
pub(super) struct Ready {
    pub set: StoredSet,
    /// Digest of the image for which it was built or found, if it was known.
    pub image: Option<String>,
}

/// The result of a build.
pub(super) type Made = Result<Arc<Ready>, Refusal>;

/// The progress of a build.
#[derive(Debug, Clone)]
pub(super) enum BuildStep {
    /// The current step, in a line for people; empty while the set is looked for, which takes a moment.
    Doing(String),
    /// It has ended.
    Done(Made),
}

/// The last job of a set.
struct Job {
    state: State,
    /// Builds that failed, in a row.
    failures: u32,
    /// The time of the last request for it.
    used: Instant,
    /// The length of what was asked for, and of the reason if it failed.
    bytes: usize,
}

impl Job {
    fn new(key: &Key, state: State, failures: u32) -> Self {
        let why = match &state {
            State::Failed { why, .. } => why.to_string().len(),
            State::Building { .. } | State::Ready(_) => 0,
        };
        Self { state, failures, used: Instant::now(), bytes: key.bytes() + why }
    }

    /// Whether it can be forgotten.
    fn is_over(&self) -> bool {
        !matches!(self.state, State::Building { .. })
    }
}

enum State {
    /// A task builds it. It holds the other ends of the channels.
    Building {
        step: watch::Receiver<BuildStep>,
        /// The client whose request began it.
        client: Client,
        /// The clients that have asked for it so far, each once.
        clients: watch::Sender<Vec<Client>>,
    },
    Ready(Arc<Ready>),
    Failed {
        why: Refusal,
        since: Instant,
    },
}

/// The state of a set, as far as it is known.
pub(super) enum KnownSet {
    Nothing,
    /// It is being built; the step.
    Building(String),
    Ready(Arc<Ready>),
    Failed(Refusal),
}

/// The channels of a task that builds a set.
pub(super) struct Begun {
    /// Reports its steps.
    pub step: watch::Sender<BuildStep>,
    /// The clients that have asked for it so far, each once.
    pub clients: watch::Receiver<Vec<Client>>,
}

/// The answer to a request for a set.
pub(super) enum Joined {
    Ready(Arc<Ready>),
    /// A build to wait for.
    Waiting(Waiter),
    /// The same, and the channels of its task, which the caller has to start.
    Begun(Waiter, Begun),
}

/// All jobs of a server.
pub(super) struct Jobs {
    of_one_builds: usize,
    of_one_waiters: usize,
    jobs: Mutex<HashMap<Key, Job>>,
    waiters: Arc<Mutex<HashMap<Client, usize>>>,
}

/// A request that waits for a build. It counts until it is dropped.
pub(super) struct Waiter {
    step: watch::Receiver<BuildStep>,
    client: Client,
    waiters: Arc<Mutex<HashMap<Client, usize>>>,
}

impl Waiter {
    /// Waits for the end of the build, and reports its steps.
    pub(super) async fn follow(&mut self, say: Option<Progress<'_>>) -> Made {
        loop {
            let step = self.step.borrow_and_update().clone();
            match (step, say) {
                (BuildStep::Done(made), _) => return made,
                (BuildStep::Doing(line), Some(say)) if !line.is_empty() => say(&line),
                (BuildStep::Doing(_), _) => {}
            }
            if self.step.changed().await.is_err() {
                return Err(Refusal::Stopping);
            }
        }
    }

    /// Whether the build has ended.
    pub(super) fn is_done(&self) -> bool {
        matches!(&*self.step.borrow(), BuildStep::Done(_))
    }
}

impl Drop for Waiter {
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
    /// Jobs for one client, or for several, of which each can have half.
    pub(super) fn new(has_one_client: bool) -> Self {
        let of_one = |all: usize| if has_one_client { all } else { all / 2 };
        Self {
            of_one_builds: of_one(MOST_BUILDS),
            of_one_waiters: of_one(MOST_WAITERS),
            jobs: Mutex::default(),
            waiters: Arc::default(),
        }
    }

    /// Joins the job of a set that fits `image`, if that is known, or begins one. A build that failed a moment ago is not tried
    /// again, unless `again`.
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
        let mut jobs = lock(&self.jobs);
        let mut failures = 0;
        if let Some(job) = jobs.get_mut(key) {
            job.used = Instant::now();
            failures = job.failures;
            match &job.state {
                State::Ready(ready) if is_for(ready, image) => {
                    return Ok(Joined::Ready(Arc::clone(ready)));
                }
                // A task that panicked will never report its end.
                State::Building { step, clients, .. } if step.has_changed().is_ok() => {
                    let waiting = self.wait(client, step.clone())?;
                    clients.send_if_modified(|clients| {
                        let is_new = !clients.contains(client);
                        if is_new {
                            clients.push(client.clone());
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
            let is_such = |job: &&Job| match &job.state {
                State::Building { client, .. } => of.is_none_or(|of| of == client),
                _ => false,
            };
            jobs.values().filter(is_such).count()
        };
        let (waiting, own) = (building(None), building(Some(client)));
        if is_too_much(waiting, MOST_BEGUN, own, self.of_one_builds) {
            return Err(Refusal::Busy { waiting, what: "sets of packages are being built" });
        }
        let (sender, step) = watch::channel(BuildStep::Doing(String::new()));
        let waiting = self.wait(client, step.clone())?;
        let clients = watch::Sender::new(vec![client.clone()]);
        let begun = Begun { step: sender, clients: clients.subscribe() };
        let state = State::Building { step, client: client.clone(), clients };
        jobs.insert(key.clone(), Job::new(key, state, failures));
        forget_oldest(&mut jobs);
        Ok(Joined::Begun(waiting, begun))
    }

    /// Notes that a set is there, unless something is known of it.
    pub(super) fn found(&self, key: &Key, ready: Arc<Ready>) -> bool {
        let mut jobs = lock(&self.jobs);
        if jobs.contains_key(key) {
            return false;
        }
        jobs.insert(key.clone(), Job::new(key, State::Ready(ready), 0));
        forget_oldest(&mut jobs);
        true
    }

    /// Notes the result of a build, and reports it to the requests that wait. Returns whether a failure is the first in a row.
    pub(super) fn end(&self, key: &Key, made: Made, waiters: &watch::Sender<BuildStep>) -> bool {
        let mut jobs = lock(&self.jobs);
        let before = jobs.get(key).map_or(0, |job| job.failures);
        match &made {
            Ok(ready) => {
                jobs.insert(key.clone(), Job::new(key, State::Ready(Arc::clone(ready)), 0));
            }
            Err(why) if why.is_remembered() => {
                let state = State::Failed { why: why.clone(), since: Instant::now() };
                jobs.insert(key.clone(), Job::new(key, state, before.saturating_add(1)));
            }
            Err(_) => {
                jobs.remove(key);
            }
        }
        forget_oldest(&mut jobs);
        waiters.send_replace(BuildStep::Done(made));
        before == 0
    }

    /// Forgets that a set was there, unless another was found meanwhile.
    pub(super) fn lost(&self, key: &Key, lost: &Arc<Ready>) {
        let mut jobs = lock(&self.jobs);
        let is_same =
            |job: &Job| matches!(&job.state, State::Ready(ready) if Arc::ptr_eq(ready, lost));
        if jobs.get(key).is_some_and(is_same) {
            jobs.remove(key);
        }
    }

    /// Forgets that sets with this hash were there.
    pub(super) fn removed(&self, hash: &str) {
        let mut jobs = lock(&self.jobs);
        jobs.retain(|_, job| !matches!(&job.state, State::Ready(ready) if ready.set.hash == hash));
    }

    /// The hashes of the sets that were there.
    pub(super) fn ready(&self) -> Vec<String> {
        let hash = |job: &Job| match &job.state {
            State::Ready(ready) => Some(ready.set.hash.clone()),
            _ => None,
        };
        lock(&self.jobs).values().filter_map(hash).collect()
    }

    /// The state of a set.
    pub(super) fn known(&self, key: &Key) -> KnownSet {
        match lock(&self.jobs).get(key).map(|job| &job.state) {
            None => KnownSet::Nothing,
            Some(State::Building { step, .. }) => match &*step.borrow() {
                BuildStep::Doing(line) => KnownSet::Building(line.clone()),
                BuildStep::Done(_) => KnownSet::Nothing,
            },
            Some(State::Ready(ready)) => KnownSet::Ready(Arc::clone(ready)),
            Some(State::Failed { why, .. }) => KnownSet::Failed(why.clone()),
        }
    }

    /// The time that a failure of a set is still remembered, if there is one.
    pub(super) fn pause_left(&self, key: &Key) -> Option<Duration> {
        let jobs = lock(&self.jobs);
        let job = jobs.get(key)?;
        let State::Failed { why, since } = &job.state else { return None };
        pause(job.failures, why).checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// The number of builds that run or wait for their turn.
    pub(super) fn building(&self) -> usize {
        let jobs = lock(&self.jobs);
        jobs.values().filter(|job| matches!(job.state, State::Building { .. })).count()
    }

    fn wait(&self, client: &Client, step: watch::Receiver<BuildStep>) -> Result<Waiter, Refusal> {
        let mut waiters = lock(&self.waiters);
        let waiting = waiters.values().sum();
        let own = waiters.get(client).copied().unwrap_or_default();
        if is_too_much(waiting, MOST_WAITERS, own, self.of_one_waiters) {
            return Err(Refusal::Busy { waiting, what: "calls wait for sets of packages" });
        }
        *waiters.entry(client.clone()).or_default() += 1;
        Ok(Waiter { step, client: client.clone(), waiters: Arc::clone(&self.waiters) })
    }
}

/// Whether a client that has `own` of `all` can't have one more. A client that has none can always have one.
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

/// The time that a failure is remembered, after this many.
fn pause(failures: u32, why: &Refusal) -> Duration {
    let is_lasting = match why {
        Refusal::Failed { why, .. } => why.is_of_requirements(),
        // It would be downloaded again only to see that.
        Refusal::TooLarge { .. } => true,
        _ => false,
    };
    let first = if is_lasting { FIRST_PAUSE_IF_LASTING } else { FIRST_PAUSE };
    let doubled = first * 2_u32.saturating_pow(failures.saturating_sub(1).min(8));
    doubled.min(LONGEST_PAUSE)
}

/// Forgets the jobs of sets that were asked for least recently, if there are too many or they are too long.
fn forget_oldest(jobs: &mut HashMap<Key, Job>) {
    loop {
        let bytes: usize = jobs.values().filter(|job| job.is_over()).map(|job| job.bytes).sum();
        if jobs.len() <= MOST_REMEMBERED && bytes <= MOST_REMEMBERED_BYTES {
            return;
        }
        let over = jobs.iter().filter(|(_, job)| job.is_over());
        let Some((oldest, _)) = over.min_by_key(|(_, job)| job.used) else { return };
        let oldest = oldest.clone();
        jobs.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_of_long_requests_are_forgotten_earlier() {
        let (jobs, client) = (Jobs::new(true), Client::Host);
        let key = |number: u32, length: usize| Key {
            language: "py".to_owned(),
            set: None,
            requirements: vec![format!("{number}{}", "x".repeat(length))],
            keeps: BTreeMap::from([("y".to_owned(), "1".repeat(length))]),
        };
        let fail = |key: &Key| {
            let joined = jobs.join(key, &client, None, false);
            let Ok(Joined::Begun(_, begun)) = joined else { panic!("it was not known") };
            jobs.end(key, Err(Refusal::Vanishes("it".to_owned())), &begun.step);
        };
        let is_known = |key: &Key| matches!(jobs.known(key), KnownSet::Failed(_));
        let long = 32 << 10;
        for number in 0..200 {
            fail(&key(number, long));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let known = (0..200).filter(|number| is_known(&key(*number, long))).count();
        assert_eq!(known, MOST_REMEMBERED_BYTES / (2 * long) - 1, "and a few bytes of each");
        assert!(is_known(&key(199, long)) && !is_known(&key(0, long)));
        // Short ones have room.
        for number in 200..1000 {
            fail(&key(number, 10));
        }
        assert!((200..1000).all(|number| is_known(&key(number, 10))));
    }
}
