//! Images that are being built or pulled, for those who wait for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Longest part of a step's text that is kept, in characters. It is what a package manager or a registry prints.
const MAX_STEP: usize = 100;

/// What is being fetched on an engine; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetches(Arc<Mutex<BTreeMap<String, Fetch>>>);

#[derive(Debug)]
struct Fetch {
    is_built: bool,
    /// When its turn came, if it has.
    since: Option<Instant>,
    step: String,
}

/// How far an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchStatus {
    /// The image's name.
    pub image: String,
    /// Whether it is built here; it is pulled otherwise.
    pub is_built: bool,
    /// How long it has taken so far; `None` while it waits for another one.
    pub elapsed: Option<Duration>,
    /// What is being done, in the words of whoever does it.
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
    /// Notes that an image is wanted. It is no longer when the guard is dropped.
    pub(crate) fn begin(&self, image: &str, is_built: bool) -> Fetching {
        let fetch = Fetch { is_built, since: None, step: String::new() };
        lock(&self.0).insert(image.to_owned(), fetch);
        Fetching { fetches: self.clone(), image: image.to_owned() }
    }

    /// How far an image is, if it is being fetched.
    pub(crate) fn status(&self, image: &str) -> Option<FetchStatus> {
        let fetches = lock(&self.0);
        let Fetch { is_built, since, step } = fetches.get(image)?;
        Some(FetchStatus {
            image: image.to_owned(),
            is_built: *is_built,
            elapsed: since.map(|since| since.elapsed()),
            step: step.clone(),
        })
    }
}

/// An image that is being fetched.
#[derive(Debug)]
pub(crate) struct Fetching {
    fetches: Fetches,
    image: String,
}

impl Fetching {
    /// Its turn has come.
    pub(crate) fn start(&self) {
        self.change(|fetch| fetch.since = Some(Instant::now()));
    }

    /// Something else is being done now.
    pub(crate) fn step(&self, line: &str) {
        let line = line.trim().chars().filter(|c| !c.is_control());
        let step: String = line.take(MAX_STEP).collect();
        self.change(|fetch| fetch.step = step);
    }

    fn change(&self, change: impl FnOnce(&mut Fetch)) {
        if let Some(fetch) = lock(&self.fetches.0).get_mut(&self.image) {
            change(fetch);
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        lock(&self.fetches.0).remove(&self.image);
    }
}
