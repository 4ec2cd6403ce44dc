//! Idempotency: a client that gives a key to a call can send the call again, and its program runs once.
//!
//! ```text
//! no entry ─▶ running ─▶ answer kept ─▶ mark: "it ran, and its answer was not kept" ─▶ no entry
//!                └── did not run ─▶ no entry
//! ```
//!
//! A call with a key runs in a task of its own. Each caller with the same key and request waits for its answer. If the
//! connection of a caller breaks, a load balancer sends the call again, so the program goes on for a moment without a caller.
//! A call that did not run leaves nothing, so that the next one can run. Keys belong to their client. See
//! `docs/decisions/0068-idempotency-keys.md`.

mod key;
mod running;
mod store;

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio_util::task::TaskTracker;

use self::running::{CallEnd, Running};
use self::store::{Found, Mark, Store};
use super::{Again, CallOutcome, Clients};
use crate::config::Config;

pub(crate) use self::key::{Key, RequestDigest};

/// The header with the key of a request.
pub(crate) const KEY_HEADER: &str = "idempotency-key";

/// The status in the audit log of a call that was sent again and got the first answer.
pub(crate) const REPEATED: &str = "repeated";

/// How long a program goes on without a caller if its key came in a header: the time in which a load balancer, which may have added
/// it, sends a call again. A client that cancels a call waits for the end of its program as long.
pub(crate) const BALANCER_GRACE: Duration = Duration::from_secs(3);

/// How long it goes on if the client itself gave the key, and sends the call again.
pub(crate) const CLIENT_GRACE: Duration = Duration::from_secs(10);

/// The keys of all clients; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Idempotency {
    store: Arc<Mutex<Store>>,
    tasks: TaskTracker,
}

/// The bounds of kept answers.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    /// Bytes for all clients.
    all: usize,
    /// Bytes for one of them.
    of_one: usize,
    keep_for: Duration,
}

impl Bounds {
    fn of(config: &Config, clients: Clients) -> Self {
        let all = config.requests.keyed_answers.as_usize();
        Self { all, of_one: clients.share_of(all), keep_for: config.requests.keep_keyed_answers }
    }
}

/// A call with a key.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The client, whose keys no other client sees.
    pub client: Client,
    pub key: Key,
    /// The digest of the whole request.
    pub digest: RequestDigest,
}

/// An answer of a call that was served.
pub(crate) struct Made<T> {
    pub answer: T,
    /// Its bytes.
    pub weight: usize,
    /// One that did not run is not kept.
    pub outcome: CallOutcome,
}

/// The answer of a call with a key.
#[derive(Debug)]
pub(crate) struct Once<T> {
    pub answer: Arc<T>,
    /// Whether another call with the key was the first.
    pub is_repeated: bool,
}

/// Why a call with a key is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyRefusal {
    /// The key was used for another request.
    #[error(
        "this idempotency key was used for another request before: nothing was run; use a new key for each request, and the \
         same key only to send the same request again"
    )]
    OtherRequest,
    /// The call has run.
    #[error(
        "the call with this idempotency key has run, and its answer was not kept: it was not run again; use a new key if it \
         should be"
    )]
    NotKept,
    /// The call was ended.
    #[error(
        "the call with this idempotency key was ended before its end, because its callers were gone or the server failed: it may \
         have run in part, and was not run again; use a new key if it should be"
    )]
    Ended,
    /// The call runs, and its answer is for its first caller alone.
    #[error(
        "the call with this idempotency key is running, and its answer is a stream, which only its first caller can read: it \
         was not run again"
    )]
    Streaming,
    /// Too many callers wait for the answer.
    #[error("{0} calls with this idempotency key wait for its answer, and no more can")]
    TooManyWaiting(usize),
    /// The client has too many calls with keys that run or wait.
    #[error(
        "{0} of your calls with idempotency keys are running or waiting: nothing was run; try again in a moment"
    )]
    TooManyRunning(usize),
}

impl KeyRefusal {
    /// Whether the call with this key has run.
    pub(crate) const fn outcome(self) -> CallOutcome {
        match self {
            Self::OtherRequest => CallOutcome::NotRun(Again::Never),
            Self::TooManyRunning(_) => CallOutcome::NotRun(Again::AfterOwn(1)),
            Self::NotKept => CallOutcome::Ran,
            // The first call may wait for its turn.
            Self::Streaming | Self::TooManyWaiting(_) | Self::Ended => CallOutcome::Unknown,
        }
    }
}

impl From<Mark> for KeyRefusal {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Ran => Self::NotKept,
            Mark::Ended => Self::Ended,
        }
    }
}

/// The first call with a key. Dropping it says that the call was ended.
pub(crate) struct Claim {
    of: Idempotency,
    asked: Asked,
    running: Running,
    is_over: bool,
}

impl Claim {
    /// The call has not run.
    pub(crate) fn not_run(mut self) {
        self.is_over = true;
        lock(&self.of.store).remove(&self.asked);
    }

    /// The call has run or runs, and its answer can't be kept.
    pub(crate) fn ran(mut self) {
        self.is_over = true;
        lock(&self.of.store).mark(&self.asked, Mark::Ran);
    }

    /// The call has been answered.
    fn answered<T: Any + Send + Sync>(mut self, made: Made<T>) {
        let Made { answer, weight, outcome } = made;
        let answer: running::AnyAnswer = Arc::new(answer);
        self.running.end(CallEnd::Answered(Arc::clone(&answer)));
        self.is_over = true;
        let mut store = lock(&self.of.store);
        match outcome {
            CallOutcome::NotRun(_) => store.remove(&self.asked),
            CallOutcome::Ran | CallOutcome::Unknown => store.keep(&self.asked, answer, weight),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.of.store).mark(&self.asked, Mark::Ended);
            self.running.end(CallEnd::Ended);
        }
    }
}

impl Idempotency {
    /// For one client or for several.
    pub(super) fn new(config: &Config, clients: Clients) -> Self {
        let this = Self::default();
        this.set_bounds(config, clients);
        this
    }

    /// Uses the bounds of another configuration from now on. All keys stay.
    pub(super) fn set_bounds(&self, config: &Config, clients: Clients) {
        lock(&self.store).set_bounds(Bounds::of(config, clients));
    }

    /// Number of kept answers, and their bytes.
    pub(crate) fn held(&self) -> (usize, usize) {
        let mut store = lock(&self.store);
        store.sweep();
        store.held()
    }

    /// Answers a call with a key: with `run` if it is the first, and else with the answer of the first. `run` goes on for `grace`
    /// when its callers are gone.
    ///
    /// # Errors
    ///
    /// When the key stands for another request, or there is no answer.
    pub(crate) async fn once<T: Any + Send + Sync>(
        &self,
        asked: Asked,
        grace: Duration,
        run: impl Future<Output = Made<T>> + Send + 'static,
    ) -> Result<Once<T>, KeyRefusal> {
        let begun = Running::new();
        // Before others can find it, and take all places.
        let first = begun.join()?;
        let found = lock(&self.store).begin(&asked, || begun.clone())?;
        let (waiting, is_repeated) = match found {
            Found::Kept(answer) => return of_type(answer, true),
            Found::Running(running) => (running.join()?, true),
            Found::First => {
                let of = self.clone();
                let claim = Claim { of, asked, running: begun.clone(), is_over: false };
                self.tasks.spawn(async move {
                    tokio::select! {
                        biased;
                        made = run => claim.answered(made),
                        // Dropping the claim tells callers that came in this moment.
                        () = begun.abandoned(grace) => {}
                    }
                });
                (first, false)
            }
        };
        match waiting.end().await {
            CallEnd::Answered(answer) => of_type(answer, is_repeated),
            CallEnd::Ended => Err(KeyRefusal::Ended),
        }
    }

    /// Claims a key for a call whose answer is a stream. Only its first caller gets that.
    ///
    /// # Errors
    ///
    /// When the key was used before.
    pub(crate) fn claim(&self, asked: Asked) -> Result<Claim, KeyRefusal> {
        let running = Running::new();
        match lock(&self.store).begin(&asked, || running.clone())? {
            Found::First => Ok(Claim { of: self.clone(), asked, running, is_over: false }),
            Found::Running(_) => Err(KeyRefusal::Streaming),
            Found::Kept(_) => Err(KeyRefusal::NotKept),
        }
    }
}

/// An answer of the type that its request has.
fn of_type<T: Any + Send + Sync>(
    answer: running::AnyAnswer,
    is_repeated: bool,
) -> Result<Once<T>, KeyRefusal> {
    // The digest names the operation, so it is always this type.
    let answer = answer.downcast().map_err(|_| KeyRefusal::NotKept)?;
    Ok(Once { answer, is_repeated })
}

#[cfg(test)]
mod tests;
