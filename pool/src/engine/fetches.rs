//! Images that are being built or pulled, with their progress.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock::lock;
use crate::quote::escaped;

/// Longest part of a step's text that is kept, in characters. It is what a package manager or a registry prints.
const MAX_STEP: usize = 100;

/// The images that are fetched on an engine, one at a time; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetches(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// All that were asked for, in that order.
    fetches: Mutex<Vec<Fetch>>,
    /// Notified when a turn may have come.
    changed: Notify,
}

#[derive(Debug)]
struct Fetch {
    id: u64,
    image: String,
    is_built: bool,
    /// Whether a request waits for it, and not only a pool.
    is_urgent: bool,
    /// When its turn came, if it has.
    since: Option<Instant>,
    step: String,
}

/// The progress of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchStatus {
    /// The image's name.
    pub image: String,
    /// Whether it is built here; it is pulled otherwise.
    pub is_built: bool,
    /// How long it has taken so far; `None` while it waits for another one.
    pub elapsed: Option<Duration>,
    /// The current step, in the words of the tool that does it.
    pub step: String,
}

impl fmt::Display for FetchStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, is_built, elapsed, step } = self;
        let (doing, usually) = match is_built {
            true => ("built", "which usually takes one to three minutes"),
            false => ("pulled", "which takes as long as the registry needs"),
        };
        let Some(elapsed) = elapsed else {
            return write!(f, "image {image} is not there yet; it is {doing} after another one");
        };
        let seconds = elapsed.as_secs();
        write!(f, "image {image} is being {doing}, {usually}; {seconds} s so far")?;
        if step.is_empty() { Ok(()) } else { write!(f, ", now: {step}") }
    }
}

impl Fetches {
    /// Adds an image. Dropping the guard removes it.
    pub(crate) fn begin(&self, image: &str, is_built: bool) -> Fetching {
        let mut fetches = lock(&self.0.fetches);
        let id = fetches.last().map_or(0, |last| last.id + 1);
        fetches.push(Fetch {
            id,
            image: image.to_owned(),
            is_built,
            is_urgent: false,
            since: None,
            step: String::new(),
        });
        Fetching { fetches: self.clone(), id }
    }

    /// The progress of an image, if it is being fetched.
    pub(crate) fn status(&self, image: &str) -> Option<FetchStatus> {
        let fetches = lock(&self.0.fetches);
        let of_it = || fetches.iter().filter(|fetch| fetch.image == image);
        let fetch = of_it().find(|fetch| fetch.since.is_some()).or_else(|| of_it().next())?;
        Some(FetchStatus {
            image: image.to_owned(),
            is_built: fetch.is_built,
            elapsed: fetch.since.map(|since| since.elapsed()),
            step: fetch.step.clone(),
        })
    }

    /// Moves an image before those that no request waits for.
    pub(crate) fn hurry(&self, image: &str) {
        for fetch in lock(&self.0.fetches).iter_mut().filter(|fetch| fetch.image == image) {
            fetch.is_urgent = true;
        }
    }

    /// Takes the turn if it is this one's.
    fn take_turn(&self, id: u64) -> bool {
        let mut fetches = lock(&self.0.fetches);
        if fetches.iter().any(|fetch| fetch.since.is_some()) {
            return false;
        }
        // The first of them, if several are equal.
        let next = fetches.iter_mut().min_by_key(|fetch| !fetch.is_urgent);
        match next {
            Some(next) if next.id == id => {
                next.since = Some(Instant::now());
                true
            }
            _ => false,
        }
    }
}

/// An image that is being fetched, or waits for its turn.
#[derive(Debug)]
pub(crate) struct Fetching {
    fetches: Fetches,
    id: u64,
}

impl Fetching {
    /// Waits until no other image is being fetched and this is the next one.
    pub(crate) async fn turn(&self) {
        loop {
            let changed = self.fetches.0.changed.notified();
            tokio::pin!(changed);
            // From here on a change is not missed.
            changed.as_mut().enable();
            if self.fetches.take_turn(self.id) {
                return;
            }
            changed.await;
        }
    }

    /// Sets the current step.
    pub(crate) fn step(&self, line: &str) {
        let step: String = escaped(line.trim()).chars().take(MAX_STEP).collect();
        let mut fetches = lock(&self.fetches.0.fetches);
        if let Some(fetch) = fetches.iter_mut().find(|fetch| fetch.id == self.id) {
            fetch.step = step;
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        lock(&self.fetches.0.fetches).retain(|fetch| fetch.id != self.id);
        self.fetches.0.changed.notify_waiters();
    }
}
