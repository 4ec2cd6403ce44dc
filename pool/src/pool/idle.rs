//! The shelf: sandboxes that wait for a request, the first few thawed, the rest paused.
//!
//! Each kind lies in a pool of deadpool's unmanaged sort. The managed sort makes objects only when
//! somebody asks for one, which is what a pool of pre-made sandboxes must avoid; the unmanaged sort
//! takes what the refill made, hands each out once, and lets a request wait for the next.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use deadpool::unmanaged;

use crate::lock::lock;
use crate::sandbox::{Armed, Missing, Paused, Sandbox};

/// A sandbox from the shelf.
pub(crate) enum Idle {
    /// It is thawed.
    Hot(Sandbox<Armed>),
    /// It is frozen.
    Paused(Sandbox<Paused>),
}

/// Sandboxes ready to be taken.
pub(crate) struct IdleSet {
    size: usize,
    /// How many of them are thawed at rest. Others are beside them only for as long as they lack something.
    front: usize,
    hot: unmanaged::Pool<Sandbox<Armed>>,
    paused: unmanaged::Pool<Sandbox<Paused>>,
    /// Held while something is put on the shelf, taken at once, sorted through or closed: nobody
    /// finds it empty while it is sorted, and nothing is put on it once it is closed.
    sorting: Mutex<()>,
    /// The pools have a way to close of their own, but an object that is added or taken at that very
    /// moment is lost in them.
    closed: CancellationToken,
}

/// What was dropped from the shelf.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// All of it.
    pub(crate) total: usize,
    /// Of these, sandboxes that ended by themselves right after they were made.
    pub(crate) early_exits: usize,
}

/// A sandbox that ends before this age has something wrong with it.
const YOUNG: Duration = Duration::from_secs(2);

/// Why the shelf hands nothing out any more.
#[derive(Debug)]
pub(crate) struct Closed;

impl IdleSet {
    pub(crate) fn new(size: usize, hot: usize) -> Self {
        Self {
            size,
            front: hot.min(size),
            hot: unmanaged::Pool::new(size),
            paused: unmanaged::Pool::new(size),
            sorting: Mutex::new(()),
            closed: CancellationToken::new(),
        }
    }

    /// Takes a sandbox if one is there: for a program that wants modules one in which they wait, and
    /// for others a thawed one, rather one in which they do not.
    pub(crate) fn take(&self, wants_modules: bool) -> Option<Idle> {
        let _sorting = lock(&self.sorting);
        let finished = || self.take_hot(|sandbox| sandbox.missing().is_none()).map(Idle::Hot);
        let any = || self.hot.try_remove().ok().map(Idle::Hot);
        let unfinished = || self.take_hot(|sandbox| sandbox.missing().is_some()).map(Idle::Hot);
        let paused = || self.paused.try_remove().ok().map(Idle::Paused);
        if wants_modules {
            finished().or_else(paused).or_else(any)
        } else {
            unfinished().or_else(any).or_else(paused)
        }
    }

    /// Waits for a sandbox. Dropping the future takes none.
    pub(crate) async fn next(&self) -> Result<Idle, Closed> {
        let shelved = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(Closed),
            hot = self.hot.remove() => hot.map(Idle::Hot),
            paused = self.paused.remove() => paused.map(Idle::Paused),
        };
        shelved.map_err(|_| Closed)
    }

    /// Takes a paused sandbox if there is one and, besides the `coming` ones, a place at the front.
    pub(crate) fn take_to_thaw(&self, coming: usize) -> Option<Sandbox<Paused>> {
        let _sorting = lock(&self.sorting);
        if self.finished() + coming < self.front { self.paused.try_remove().ok() } else { None }
    }

    /// Takes a thawed sandbox that would not be on the shelf as it is, but for requests that waited: one
    /// that lacks its interpreter, or one with everything that is more than belongs to the front.
    pub(crate) fn take_untidy(&self) -> Option<Sandbox<Armed>> {
        let _sorting = lock(&self.sorting);
        let mut finished = 0;
        self.take_hot(|sandbox| match sandbox.missing() {
            Some(Missing::Interpreter) => true,
            Some(Missing::Modules) => false,
            None => {
                finished += 1;
                finished > self.front
            }
        })
    }

    /// Takes a thawed sandbox that lacks nothing but its modules.
    pub(crate) fn take_without_modules(&self) -> Option<Sandbox<Armed>> {
        let _sorting = lock(&self.sorting);
        self.take_hot(|sandbox| sandbox.missing() == Some(Missing::Modules))
    }

    /// How many thawed sandboxes lack nothing. Must be called under the lock.
    fn finished(&self) -> usize {
        let mut finished = 0;
        let _ = self.take_hot(|sandbox| {
            finished += usize::from(sandbox.missing().is_none());
            false
        });
        finished
    }

    /// Takes the first thawed sandbox of a kind. Must be called under the lock.
    fn take_hot(
        &self,
        mut is_wanted: impl FnMut(&Sandbox<Armed>) -> bool,
    ) -> Option<Sandbox<Armed>> {
        let mut found = None;
        for sandbox in drain(&self.hot) {
            if found.is_none() && is_wanted(&sandbox) {
                found = Some(sandbox);
            } else {
                // It has just been taken from there under the lock, so there is a place.
                let _ = self.hot.try_add(sandbox);
            }
        }
        found
    }

    /// Puts a thawed sandbox to the front; gives it back if there is no place.
    pub(crate) fn put_to_front(&self, sandbox: Sandbox<Armed>) -> Result<(), Sandbox<Armed>> {
        let _sorting = lock(&self.sorting);
        if self.has_room() && self.finished() < self.front {
            add(&self.hot, sandbox)
        } else {
            Err(sandbox)
        }
    }

    /// Puts a thawed sandbox on the shelf, whatever belongs to the front; gives it back if there is no
    /// place at all.
    pub(crate) fn put_hot(&self, sandbox: Sandbox<Armed>) -> Result<(), Sandbox<Armed>> {
        let _sorting = lock(&self.sorting);
        if self.has_room() { add(&self.hot, sandbox) } else { Err(sandbox) }
    }

    /// Puts a paused sandbox on the shelf; gives it back if there is no place.
    pub(crate) fn put_paused(&self, sandbox: Sandbox<Paused>) -> Result<(), Sandbox<Paused>> {
        let _sorting = lock(&self.sorting);
        if self.has_room() { add(&self.paused, sandbox) } else { Err(sandbox) }
    }

    /// Whether there is a place for a sandbox.
    pub(crate) fn has_room(&self) -> bool {
        let (hot, paused) = self.len();
        !self.closed.is_cancelled() && hot + paused < self.size
    }

    /// Drops what is dead or older than `max_age`.
    pub(crate) fn discard_stale(&self, max_age: Duration) -> Stale {
        let _sorting = lock(&self.sorting);
        let mut stale = Stale::default();
        sort_through(&self.hot, max_age, &mut stale);
        sort_through(&self.paused, max_age, &mut stale);
        stale
    }

    /// Sandboxes on the shelf: hot ones, paused ones.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.hot.status().size, self.paused.status().size)
    }

    /// Drops what is there and wakes everybody who waits. Who was about to take something just then
    /// may leave it behind: closing again drops that too.
    pub(crate) fn close(&self) {
        let _sorting = lock(&self.sorting);
        self.closed.cancel();
        while self.hot.try_remove().is_ok() {}
        while self.paused.try_remove().is_ok() {}
    }
}

/// Takes everything, the first that came first.
fn drain<T>(pool: &unmanaged::Pool<T>) -> Vec<T> {
    // The pool hands out the last that came.
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_remove().ok()).collect();
    all.reverse();
    all
}

fn add<T>(pool: &unmanaged::Pool<T>, sandbox: T) -> Result<(), T> {
    pool.try_add(sandbox).map_err(|(sandbox, _)| sandbox)
}

fn sort_through<State>(
    pool: &unmanaged::Pool<Sandbox<State>>,
    max_age: Duration,
    stale: &mut Stale,
) {
    let now = Instant::now();
    for sandbox in drain(pool) {
        let age = now.duration_since(sandbox.created());
        if sandbox.is_alive() && age < max_age {
            // It has just been taken from there under the lock, so there is a place.
            let _ = pool.try_add(sandbox);
            continue;
        }
        stale.total += 1;
        stale.early_exits += usize::from(age < YOUNG && age < max_age);
    }
}
