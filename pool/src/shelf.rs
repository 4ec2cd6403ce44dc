//! The shelf: sandboxes that wait for a request, the first few thawed, the rest paused.
//!
//! Each kind lies in a pool of deadpool's unmanaged sort. The managed sort makes objects only when
//! somebody asks for one, which is what a pool of pre-made sandboxes must avoid; the unmanaged sort
//! takes what the refill made, hands each out once, and lets a request wait for the next.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use deadpool::unmanaged;

use crate::sandbox::{Armed, Paused, Sandbox};

/// A sandbox from the shelf.
pub(crate) enum Shelved {
    /// It is thawed.
    Hot(Sandbox<Armed>),
    /// It is frozen.
    Paused(Sandbox<Paused>),
}

/// Sandboxes ready to be taken.
pub(crate) struct Shelf {
    hot: unmanaged::Pool<Sandbox<Armed>>,
    paused: unmanaged::Pool<Sandbox<Paused>>,
    /// Held while the shelf is sorted through, so that nobody finds it empty just then.
    sorting: Mutex<()>,
}

/// What was dropped from the shelf.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// All of it.
    pub(crate) total: usize,
    /// Of these, sandboxes that ended by themselves right after they were made.
    pub(crate) died_young: usize,
}

/// A sandbox that ends before this age has something wrong with it.
const YOUNG: Duration = Duration::from_secs(2);

/// Why the shelf hands nothing out any more.
#[derive(Debug)]
pub(crate) struct Closed;

impl Shelf {
    pub(crate) fn new(size: usize, hot: usize) -> Self {
        let hot = hot.min(size);
        Self {
            hot: unmanaged::Pool::new(hot),
            paused: unmanaged::Pool::new(size - hot),
            sorting: Mutex::new(()),
        }
    }

    /// Takes a sandbox if one is there, a hot one first.
    pub(crate) fn take(&self) -> Option<Shelved> {
        let _sorting = self.sorting.lock().unwrap_or_else(PoisonError::into_inner);
        let hot = self.hot.try_remove().map(Shelved::Hot);
        hot.or_else(|_| self.paused.try_remove().map(Shelved::Paused)).ok()
    }

    /// Waits for a sandbox. Dropping the future takes none.
    pub(crate) async fn next(&self) -> Result<Shelved, Closed> {
        let shelved = tokio::select! {
            biased;
            hot = self.hot.remove() => hot.map(Shelved::Hot),
            paused = self.paused.remove() => paused.map(Shelved::Paused),
        };
        shelved.map_err(|_| Closed)
    }

    /// Takes a paused sandbox if there is one and a place among the hot ones.
    pub(crate) fn take_for_promotion(&self) -> Option<Sandbox<Paused>> {
        let hot = self.hot.status();
        if hot.size < hot.max_size { self.paused.try_remove().ok() } else { None }
    }

    /// Puts a thawed sandbox among the hot ones; gives it back if there is no place.
    pub(crate) fn put_hot(&self, sandbox: Sandbox<Armed>) -> Result<(), Sandbox<Armed>> {
        self.hot.try_add(sandbox).map_err(|(sandbox, _)| sandbox)
    }

    /// Whether there is a place for a paused sandbox.
    pub(crate) fn has_room(&self) -> bool {
        let paused = self.paused.status();
        !self.paused.is_closed() && paused.size < paused.max_size
    }

    /// Puts a paused sandbox on the shelf; gives it back if there is no place.
    pub(crate) fn put_paused(&self, sandbox: Sandbox<Paused>) -> Result<(), Sandbox<Paused>> {
        self.paused.try_add(sandbox).map_err(|(sandbox, _)| sandbox)
    }

    /// Drops what is dead or older than `max_age`.
    pub(crate) fn discard_stale(&self, max_age: Duration) -> Stale {
        let _sorting = self.sorting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stale = Stale::default();
        sort_through(&self.hot, max_age, &mut stale);
        sort_through(&self.paused, max_age, &mut stale);
        stale
    }

    /// Sandboxes on the shelf: hot ones, paused ones.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.hot.status().size, self.paused.status().size)
    }

    /// Drops everything and wakes everybody who waits.
    pub(crate) fn close(&self) {
        self.hot.close();
        self.paused.close();
    }
}

fn sort_through<State>(
    pool: &unmanaged::Pool<Sandbox<State>>,
    max_age: Duration,
    stale: &mut Stale,
) {
    let now = Instant::now();
    let all: Vec<_> = std::iter::from_fn(|| pool.try_remove().ok()).collect();
    // The pool hands out the last that came; the order is kept.
    for sandbox in all.into_iter().rev() {
        let age = now.duration_since(sandbox.created());
        if sandbox.is_alive() && age < max_age {
            // There is no place only if the pool was closed meanwhile, and then it shall go.
            let _ = pool.try_add(sandbox);
            continue;
        }
        stale.total += 1;
        stale.died_young += usize::from(age < YOUNG && age < max_age);
    }
}
