//! One pool: sandboxes of one image, made ahead of the requests.
//!
//! A request takes a sandbox from the idle set, or waits for the next one, whichever way it comes. A sandbox that
//! was made for a request that goes away is put into the idle set: no call to the engine is cut short.

mod adapt;
pub mod admission;
mod backoff;
pub mod counts;
mod idle;
pub mod minutes;
mod pace;
pub mod pools;
mod preloading;
mod receipt;
mod reconcile;
mod reconfigure;
mod refill;
mod serve;
pub mod session;
pub mod sizing;
mod template;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use adapt::unmeasured_memory;
use isolator_runner::wire::Wanted;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::images::{FetchStatus, ImageProvider};
use crate::engine::instance::Instance;
use crate::engine::preload::{Preload, PreloadStatus, Want};
use crate::engine::{Engine, SandboxSpec};
use crate::lock::lock;
use crate::pool::adapt::{LeadTimes, Sizing};
use crate::pool::backoff::Backoff;
use crate::pool::counts::{PoolCounts, SharedCounts};
use crate::pool::idle::{Closed, Idle, IdleSet};
use crate::pool::pools::PoolSpec;
use crate::pool::preloading::PreloadSchedule;
use crate::pool::session::SessionRequest;
use crate::pool::sizing::{LeadTime, Size};
use crate::pool::template::Template;
use crate::run::RunRequest;
use crate::run::interpreter;
use crate::sandbox::activity::ActivityGate;
use crate::sandbox::reaper::Reaper;
use crate::sandbox::{Armed, Sandbox, SandboxError};

/// Longest time that a request waits for an image that is being built or pulled. A caller can do something else in the minutes
/// that it takes.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a request waits for a sandbox. Hosts give up a call after 60 s, and should get an error before
/// that.
const CHECKOUT_TIMEOUT: Duration = Duration::from_secs(45);

/// The size of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolSize {
    /// Number of sandboxes ready at rest.
    pub size: Size,
    /// Number of them that stay thawed.
    pub hot: usize,
    /// Age at which an unused sandbox is replaced.
    pub max_age: Duration,
}

/// How a request got its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// One was ready and thawed.
    Hot,
    /// One was ready and had to be thawed.
    Warm,
    /// None was ready; the refill finished one before a new one was made for the request.
    Queued,
    /// None was ready; one was made for the request.
    Cold,
}

impl Start {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Hot, Self::Warm, Self::Queued, Self::Cold];

    /// The name that callers see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Warm => "warm",
            Self::Queued => "queued",
            Self::Cold => "cold",
        }
    }
}

/// The source of a request's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckoutSource {
    /// The idle set, or a new one, whichever is first.
    IdleSet,
    /// A new one only, because the idle ones may all have the same fault.
    New,
}

/// Why a request got no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// None could be made.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// None was ready in time.
    #[error("no sandbox was ready within {waited:?}: {cause}")]
    Waited {
        /// How long the request waited.
        waited: Duration,
        /// The reason why the pool had none.
        cause: String,
    },
    /// Its image is still being built or pulled, which goes on.
    #[error("{status}{}{}", .last_error.as_ref().map_or_else(String::new, |error| format!(" (the last try failed: {error})")), others(.ready))]
    ImageComing {
        /// The progress.
        status: FetchStatus,
        /// Why it failed the last time, if it did.
        last_error: Option<String>,
        /// Pools that are ready.
        ready: Vec<String>,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

fn others(ready: &[String]) -> String {
    match ready {
        [] => String::new(),
        ready => format!(". Ready now: {}", ready.join(", ")),
    }
}

/// A pool at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolStatus {
    /// Thawed sandboxes that wait for a request.
    pub hot: usize,
    /// Paused ones.
    pub paused: usize,
    /// Sandboxes being made.
    pub making: usize,
    /// Sandboxes that should be ready at rest, as of now.
    pub size: usize,
    /// The configured bounds of that.
    pub sizes: Size,
    /// Typical time for replacing a sandbox, once some were made.
    pub lead: Option<LeadTime>,
    /// Requests by how they got their sandbox: hot, warm, queued, cold.
    pub starts: [u64; 4],
    /// Digest of the image that had the same name before, if it was replaced since the start.
    pub former_image: Option<String>,
    /// Sandboxes that wait and are still made from a former image.
    pub outdated: usize,
    /// Why the last sandbox could not be made, if it could not.
    pub last_error: Option<String>,
    /// The interpreters in the last sandbox in which some were started.
    pub preload: PreloadStatus,
}

/// Everything that the pools of one server share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) images: ImageProvider,
    pub(crate) instance: Arc<Instance>,
    pub(crate) reaper: Reaper,
    /// Slots for sandboxes that are made for the pools.
    pub(crate) refills: Arc<Semaphore>,
    /// Slots for sandboxes that are made for requests, those included that went away meanwhile.
    pub(crate) cold_starts: Arc<Semaphore>,
    /// The tasks that make sandboxes: their calls must end before the last sweep.
    pub(crate) makers: TaskTracker,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) next_number: AtomicU64,
    pub(crate) activity: Arc<ActivityGate>,
    pub(crate) counts: SharedCounts,
    /// The wanted size of each pool.
    pub(crate) sizing: Mutex<Sizing>,
    /// A call has come, or sizes were configured.
    pub(crate) called: Notify,
    /// The start of the pools.
    pub(crate) began: Instant,
}

/// A pool of sandboxes that are all alike.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    template: Template,
    /// Its place among the pools, which is that of its name.
    place: usize,
    /// The configured size. The wanted one is that of `idle`.
    size: Mutex<PoolSize>,
    idle: IdleSet,
    /// Sandboxes on their way into the idle set.
    coming: AtomicUsize,
    /// Those of them that are being thawed, to be hot.
    thawing: AtomicUsize,
    /// Requests that found nothing idle.
    waiting: AtomicUsize,
    preloading: PreloadSchedule,
    preload_status: Mutex<PreloadStatus>,
    backoff: Mutex<Backoff>,
    /// Wakes the task that maintains the pool.
    wake: Arc<Notify>,
    /// Counts of this pool, and of the pools of the same name before it.
    counts: Arc<PoolCounts>,
    lead: Mutex<LeadTimes>,
    /// Bytes that each waiting sandbox takes; 0 until that was measured.
    each: AtomicU64,
}

impl Pool {
    /// Starts a pool, which goes on with the counts of its name, and with the size of the pool that had it before, if there was one.
    pub(crate) fn start(
        shared: Arc<Shared>,
        name: &str,
        PoolSpec { sandbox: template, size }: PoolSpec,
        counts: Arc<PoolCounts>,
        former: Option<&Self>,
    ) -> Arc<Self> {
        let wanted = former.map_or(0, |former| former.idle.size());
        let wanted = wanted.clamp(size.size.least(), size.size.most());
        let place = lock(&shared.sizing).place(name);
        let pool = Arc::new(Self {
            each: AtomicU64::new(0),
            template: Template::new(template),
            place,
            size: Mutex::new(size),
            idle: IdleSet::new(wanted, size.hot),
            coming: AtomicUsize::new(0),
            thawing: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            preloading: PreloadSchedule::new(wanted),
            preload_status: Mutex::default(),
            backoff: Mutex::default(),
            wake: Arc::new(Notify::new()),
            counts,
            lead: Mutex::default(),
            shared,
        });
        let stop = || pool.shared.stop.clone();
        pool.shared.tasks.spawn(refill::keep_full(Arc::downgrade(&pool), stop()));
        pool.shared.tasks.spawn(refill::follow_image(Arc::downgrade(&pool), stop()));
        pool
    }

    /// Changes the number of sandboxes that can wait. Surplus ones are removed, and missing ones are made.
    pub(crate) fn resize(&self, size: PoolSize) {
        if std::mem::replace(&mut *lock(&self.size), size) == size {
            return;
        }
        let wanted = self.idle.size().clamp(size.size.least(), size.size.most());
        self.set_wanted(wanted);
    }

    /// Changes the number of sandboxes that should wait now.
    fn set_wanted(&self, wanted: usize) {
        self.idle.resize(wanted, lock(&self.size).hot);
        self.preloading.resize(wanted);
        self.wake.notify_one();
    }

    /// Whether it makes such sandboxes.
    pub(crate) fn makes(&self, sandbox: &SandboxSpec) -> bool {
        self.template.spec() == sandbox
    }

    /// Whether as many sandboxes wait as should, or none can be made for now.
    pub(crate) fn is_settled(&self) -> bool {
        let (hot, paused) = self.idle.len();
        hot + paused >= self.idle.size()
            || self.last_error().is_some()
            || self.shared.images.fetching(self.template.image()).is_some()
    }

    /// The interpreter that a request wants. If it is the one with modules, the next sandbox gets them without waiting
    /// for an idle moment, because others like it may follow.
    pub(crate) fn expect(&self, request: &RunRequest) -> Want {
        let Some(preload) = self.template.preload() else { return Want::only(Wanted::New) };
        let mut want = interpreter::wanted(preload, &request.workspace, &request.argv);
        if request.packages.is_some() && want.interpreter == Wanted::Loaded {
            // A module that was imported ahead could be another version than the set has.
            want.interpreter = Wanted::Bare;
        }
        if want.interpreter == Wanted::Loaded {
            self.preloading.used();
        }
        want
    }

    /// The interpreter that a session wants: one that has imported what many programs need. A kernel with another command or other
    /// variables than those that wait can't be one of them.
    pub(crate) fn for_session(&self, request: &SessionRequest) -> Want {
        let is_like = |preload: &&Preload| {
            request.kernel.as_ref().is_some_and(|kernel| {
                (kernel.interpreter, &kernel.waiting, &kernel.env)
                    == (preload.interpreter, &preload.argv, &preload.env)
            })
        };
        let Some(preload) = self.template.preload().filter(is_like) else {
            return Want::only(Wanted::New);
        };
        // A module that was imported ahead could be another version than the set has.
        if request.packages.is_some() {
            return Want::only(Wanted::Bare);
        }
        if preload.modules.is_empty() {
            return Want { for_session: true, ..Want::only(Wanted::Bare) };
        }
        self.preloading.used();
        Want { for_session: true, ..Want::only(Wanted::Loaded) }
    }

    /// Takes a sandbox for good. Dropping the future leaves the pool as it was.
    pub(crate) async fn checkout(
        self: &Arc<Self>,
        source: CheckoutSource,
        wants_modules: bool,
    ) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        let find = tokio::time::timeout(CHECKOUT_TIMEOUT, self.find(source, wants_modules));
        let found = tokio::select! {
            biased;
            found = find => found,
            status = self.image_coming() => {
                let last_error = self.last_error();
                return Err(CheckoutError::ImageComing { status, last_error, ready: Vec::new() });
            }
        };
        found.unwrap_or_else(|_| {
            Err(CheckoutError::Waited { waited: CHECKOUT_TIMEOUT, cause: self.delay() })
        })
    }

    /// Returns when a request has waited long enough for an image that is being fetched.
    async fn image_coming(&self) -> FetchStatus {
        loop {
            self.shared.images.hurry(self.template.image());
            tokio::time::sleep(IMAGE_TIMEOUT).await;
            if let Some(status) = self.shared.images.fetching(self.template.image()) {
                return status;
            }
        }
    }

    /// Whether its image was found.
    pub(crate) fn has_image(&self) -> bool {
        self.template.is_resolved()
    }

    /// Counts a request that was served.
    pub(crate) fn count(&self, start: Start) {
        self.counts.starts[start as usize].add(1);
    }

    async fn find(
        self: &Arc<Self>,
        source: CheckoutSource,
        wants_modules: bool,
    ) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        while source == CheckoutSource::IdleSet
            && let Some(idle) = self.idle.take(wants_modules)
        {
            self.wake.notify_one();
            if let Some(found) = self.bring_to_life(idle) {
                return Ok(found);
            }
        }
        if self.shared.stop.is_cancelled() {
            return Err(CheckoutError::Closed);
        }
        let _waiting = Counted::new(&self.waiting);
        let (sender, made) = oneshot::channel();
        let pool = Arc::clone(self);
        self.shared.makers.spawn(pool.make_for(sender));
        let mut made = std::pin::pin!(made);
        loop {
            tokio::select! {
                biased;
                made = &mut made => return match made {
                    Ok(made) => Ok((made?, Start::Cold)),
                    Err(_) => Err(CheckoutError::Closed),
                },
                next = self.idle.next(), if source == CheckoutSource::IdleSet => {
                    self.wake.notify_one();
                    match next {
                        Ok(idle) => if let Some((sandbox, _)) = self.bring_to_life(idle) {
                            return Ok((sandbox, Start::Queued));
                        },
                        Err(Closed) => return Err(CheckoutError::Closed),
                    }
                }
            }
        }
    }

    /// A sandbox from the idle set, if it has not ended there.
    fn bring_to_life(&self, idle: Idle) -> Option<(Sandbox<Armed>, Start)> {
        match idle {
            Idle::Hot(sandbox) if sandbox.is_alive() => Some((sandbox, Start::Hot)),
            Idle::Paused(sandbox) if sandbox.is_alive() => {
                Some((sandbox.begin_to_resume(&self.shared.makers), Start::Warm))
            }
            Idle::Hot(_) | Idle::Paused(_) => None,
        }
    }

    /// The reason why a request is waiting.
    fn delay(&self) -> String {
        self.last_error().unwrap_or_else(|| match self.shared.reaper.leaving() {
            0 => "the engine is very slow".to_owned(),
            leaving => {
                format!("the engine is very slow: {leaving} sandboxes are waiting to be removed")
            }
        })
    }

    fn last_error(&self) -> Option<String> {
        lock(&self.backoff).last_error().map(ToOwned::to_owned)
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let (hot, paused) = self.idle.len();
        PoolStatus {
            hot,
            paused,
            making: self.coming.load(Ordering::Relaxed),
            size: self.idle.size(),
            sizes: lock(&self.size).size,
            lead: lock(&self.lead).typical(),
            starts: self.counts.starts(),
            former_image: self.template.former_digest(),
            outdated: self.idle.count(|sandbox| self.template.is_outdated(sandbox)),
            last_error: self.last_error(),
            preload: lock(&self.preload_status).clone(),
        }
    }

    /// Digest of the image that sandboxes are made from now, once it is known.
    pub(crate) fn image(&self) -> Option<String> {
        self.template.digest()
    }

    /// Drops every sandbox; nothing is handed out from now on.
    pub(crate) fn close(&self) {
        self.idle.close();
    }
}

/// Increments a count until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
