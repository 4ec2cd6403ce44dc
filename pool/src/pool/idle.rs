//! The idle set: sandboxes that wait for a request, the first few thawed, the rest paused.
//!
//! One lock guards all of it, so no request finds the set empty while it is sorted, and nothing is added
//! once it is closed. A request that finds nothing waits for the next sandbox that is added.

use std::collections::VecDeque;
use std::mem;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::engine::{SandboxName, SandboxSpec};
use crate::lock::lock;
use crate::sandbox::{Armed, Missing, Paused, Sandbox};

/// A sandbox that ends before this age has something wrong with it.
const EARLY_EXIT_AGE: Duration = Duration::from_secs(2);

/// A sandbox from the idle set.
pub(crate) enum Idle {
    /// It is thawed.
    Hot(Sandbox<Armed>),
    /// It is frozen.
    Paused(Sandbox<Paused>),
}

/// Sandboxes that a request can take.
pub(crate) struct IdleSet {
    sandboxes: Mutex<Sandboxes>,
    /// Notified once for each sandbox that is added, and for all when the set is closed.
    added: Notify,
}

/// The sandboxes of the set, the oldest first.
#[derive(Default)]
struct Sandboxes {
    /// Maximum number of sandboxes.
    size: usize,
    /// Number of them that are thawed at rest. Unfinished ones are thawed, too, until they are finished.
    most_hot: usize,
    hot: VecDeque<Sandbox<Armed>>,
    paused: VecDeque<Sandbox<Paused>>,
    is_closed: bool,
}

/// The way in which waiting sandboxes are found dead. Each is checked in full when it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// By their streams, which costs nothing.
    Streams,
    /// Also by the files that they were made from.
    Files,
}

/// Sandboxes that were dropped from the set.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// All of them.
    pub(crate) total: usize,
    /// Of these, sandboxes that ended by themselves right after they were made.
    pub(crate) early_exits: usize,
}

/// The set is closed and hands out nothing anymore.
#[derive(Debug)]
pub(crate) struct Closed;

impl IdleSet {
    pub(crate) fn new(size: usize, hot: usize) -> Self {
        let sandboxes = Sandboxes { size, most_hot: hot.min(size), ..Sandboxes::default() };
        Self { sandboxes: Mutex::new(sandboxes), added: Notify::new() }
    }

    /// How many sandboxes the set holds at rest.
    pub(crate) fn size(&self) -> usize {
        lock(&self.sandboxes).size
    }

    /// Changes how many sandboxes the set holds, and how many are thawed at rest. The oldest of those that are too many are
    /// dropped.
    pub(crate) fn resize(&self, size: usize, hot: usize) {
        let mut sandboxes = lock(&self.sandboxes);
        (sandboxes.size, sandboxes.most_hot) = (size, hot.min(size));
        let mut dropped = (Vec::new(), Vec::new());
        while sandboxes.hot.len() + sandboxes.paused.len() > size {
            match sandboxes.paused.pop_front() {
                Some(paused) => dropped.0.push(paused),
                None => dropped.1.extend(sandboxes.hot.pop_front()),
            }
        }
        drop(sandboxes);
        drop(dropped);
    }

    /// Takes a sandbox if there is one. A program that wants modules gets one that has them, if
    /// possible; others get a thawed one, preferably one without modules.
    pub(crate) fn take(&self, wants_modules: bool) -> Option<Idle> {
        let mut sandboxes = lock(&self.sandboxes);
        if wants_modules {
            if let Some(finished) = sandboxes.take_hot(|sandbox| sandbox.missing().is_none()) {
                return Some(Idle::Hot(finished));
            }
            sandboxes.newest_paused().or_else(|| sandboxes.newest_hot())
        } else {
            if let Some(unfinished) = sandboxes.take_hot(|sandbox| sandbox.missing().is_some()) {
                return Some(Idle::Hot(unfinished));
            }
            sandboxes.newest()
        }
    }

    /// Waits for a sandbox. Dropping the future takes none, and lets the next request that waits have it.
    pub(crate) async fn next(&self) -> Result<Idle, Closed> {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // In line before the look at the set, or a sandbox that is added in between would be missed.
            added.as_mut().enable();
            {
                let mut sandboxes = lock(&self.sandboxes);
                if sandboxes.is_closed {
                    return Err(Closed);
                }
                if let Some(idle) = sandboxes.newest() {
                    return Ok(idle);
                }
            }
            added.await;
        }
    }

    /// Takes a paused sandbox if there is one and fewer are hot than should be, counting the `thawing` ones.
    pub(crate) fn take_to_thaw(&self, thawing: usize) -> Option<Sandbox<Paused>> {
        let mut sandboxes = lock(&self.sandboxes);
        if sandboxes.finished() + thawing < sandboxes.most_hot {
            sandboxes.paused.pop_back()
        } else {
            None
        }
    }

    /// Takes a thawed sandbox that is only in the set because requests were waiting: one without its
    /// interpreter, or a finished one beyond those that should be hot.
    pub(crate) fn take_untidy(&self) -> Option<Sandbox<Armed>> {
        let mut finished = 0;
        let mut sandboxes = lock(&self.sandboxes);
        let most_hot = sandboxes.most_hot;
        sandboxes.take_hot(|sandbox| match sandbox.missing() {
            Some(Missing::Interpreter) => true,
            Some(Missing::Modules) => false,
            None => {
                finished += 1;
                finished > most_hot
            }
        })
    }

    /// Takes a thawed sandbox that has everything but its modules.
    pub(crate) fn take_without_modules(&self) -> Option<Sandbox<Armed>> {
        lock(&self.sandboxes).take_hot(|sandbox| sandbox.missing() == Some(Missing::Modules))
    }

    /// Adds a thawed sandbox that is finished. Gives it back if enough are hot, or the set is full.
    pub(crate) fn add_finished(&self, sandbox: Sandbox<Armed>) -> Result<(), Sandbox<Armed>> {
        self.add(sandbox, |sandboxes| {
            (sandboxes.finished() < sandboxes.most_hot).then_some(&mut sandboxes.hot)
        })
    }

    /// Adds a thawed sandbox, however many are hot. Gives it back if the set is full.
    pub(crate) fn add_hot(&self, sandbox: Sandbox<Armed>) -> Result<(), Sandbox<Armed>> {
        self.add(sandbox, |sandboxes| Some(&mut sandboxes.hot))
    }

    /// Adds a paused sandbox. Gives it back if the set is full.
    pub(crate) fn add_paused(&self, sandbox: Sandbox<Paused>) -> Result<(), Sandbox<Paused>> {
        self.add(sandbox, |sandboxes| Some(&mut sandboxes.paused))
    }

    /// Adds a sandbox to the queue that `queue` names, and lets a request know. Gives it back if there is none for
    /// it, or the set is full.
    fn add<State>(
        &self,
        sandbox: Sandbox<State>,
        queue: impl FnOnce(&mut Sandboxes) -> Option<&mut VecDeque<Sandbox<State>>>,
    ) -> Result<(), Sandbox<State>> {
        let mut sandboxes = lock(&self.sandboxes);
        if !sandboxes.has_room() {
            return Err(sandbox);
        }
        let Some(queue) = queue(&mut sandboxes) else { return Err(sandbox) };
        queue.push_back(sandbox);
        self.added.notify_one();
        Ok(())
    }

    /// Whether a sandbox can be added.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.sandboxes).has_room()
    }

    /// Drops sandboxes that are dead, older than `max_age` or outdated.
    pub(crate) fn discard_stale(
        &self,
        check: Check,
        max_age: Duration,
        is_outdated: impl Fn(&SandboxSpec) -> bool,
    ) -> Stale {
        let mut sandboxes = lock(&self.sandboxes);
        let mut stale = Stale::default();
        discard(&mut sandboxes.hot, check, max_age, &is_outdated, &mut stale);
        discard(&mut sandboxes.paused, check, max_age, &is_outdated, &mut stale);
        stale
    }

    /// How many sandboxes in the set are of a kind.
    pub(crate) fn count(&self, is_meant: impl Fn(&SandboxSpec) -> bool) -> usize {
        let sandboxes = lock(&self.sandboxes);
        let specs = sandboxes.hot.iter().map(|sandbox| &sandbox.spec);
        let specs = specs.chain(sandboxes.paused.iter().map(|sandbox| &sandbox.spec));
        specs.filter(|spec| is_meant(spec)).count()
    }

    /// How many sandboxes are in the set: hot ones, paused ones.
    pub(crate) fn len(&self) -> (usize, usize) {
        let sandboxes = lock(&self.sandboxes);
        (sandboxes.hot.len(), sandboxes.paused.len())
    }

    /// The names of the sandboxes in the set.
    pub(crate) fn names(&self) -> Vec<SandboxName> {
        let sandboxes = lock(&self.sandboxes);
        let hot = sandboxes.hot.iter().map(|sandbox| sandbox.lease.name());
        hot.chain(sandboxes.paused.iter().map(|sandbox| sandbox.lease.name())).cloned().collect()
    }

    /// Drops all sandboxes and wakes every request that waits. Nothing can be added from now on.
    pub(crate) fn close(&self) {
        let mut sandboxes = lock(&self.sandboxes);
        sandboxes.is_closed = true;
        let dropped = (mem::take(&mut sandboxes.hot), mem::take(&mut sandboxes.paused));
        drop(sandboxes);
        self.added.notify_waiters();
        drop(dropped);
    }
}

impl Sandboxes {
    fn has_room(&self) -> bool {
        !self.is_closed && self.hot.len() + self.paused.len() < self.size
    }

    /// The newest first: its files are most likely still in the caches.
    fn newest(&mut self) -> Option<Idle> {
        self.newest_hot().or_else(|| self.newest_paused())
    }

    fn newest_hot(&mut self) -> Option<Idle> {
        self.hot.pop_back().map(Idle::Hot)
    }

    fn newest_paused(&mut self) -> Option<Idle> {
        self.paused.pop_back().map(Idle::Paused)
    }

    /// Takes the oldest thawed sandbox of a kind.
    fn take_hot(
        &mut self,
        is_wanted: impl FnMut(&Sandbox<Armed>) -> bool,
    ) -> Option<Sandbox<Armed>> {
        let index = self.hot.iter().position(is_wanted)?;
        self.hot.remove(index)
    }

    /// How many thawed sandboxes have everything that should wait in them.
    fn finished(&self) -> usize {
        self.hot.iter().filter(|sandbox| sandbox.missing().is_none()).count()
    }
}

fn discard<State>(
    sandboxes: &mut VecDeque<Sandbox<State>>,
    check: Check,
    max_age: Duration,
    is_outdated: &impl Fn(&SandboxSpec) -> bool,
    stale: &mut Stale,
) {
    let now = Instant::now();
    sandboxes.retain(|sandbox| {
        let age = now.duration_since(sandbox.created());
        let is_alive = match check {
            Check::Streams => !sandbox.has_ended(),
            Check::Files => sandbox.is_alive(),
        };
        if is_alive && age < max_age && !is_outdated(&sandbox.spec) {
            return true;
        }
        stale.total += 1;
        stale.early_exits += usize::from(!is_alive && age < EARLY_EXIT_AGE && age < max_age);
        false
    });
}
