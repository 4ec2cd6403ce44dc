//! One pool: sandboxes of one image, made ahead of the requests.
//!
//! A keeper task refills the shelf whenever something was taken, died or grew old. Making a
//! sandbox is always a task of its own, which a request may wait for but never owns: a request that
//! goes away cuts no call to the engine short, and what was made for it goes on the shelf.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::{Call, Engine, EngineError, SandboxSpec, bounded};
use crate::images::ImageProvider;
use crate::lock::lock;
use crate::owner::Owner;
use crate::reaper::Reaper;
use crate::sandbox::{Armed, Sandbox, SandboxError};
use crate::shelf::{Closed, Shelf, Shelved};

/// How often a pool is looked over without an occasion. Deaths are noticed when they happen; this
/// finds what has grown old.
const LOOK_OVER: Duration = Duration::from_secs(10);

/// First and longest pause after a sandbox could not be made.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// After this long without a failure the next one is the first again.
const CALM: Duration = Duration::from_secs(60);

/// How long a request waits for a sandbox that is not there yet. Hosts give a call up after 60 s,
/// and by then shall have been told what is missing.
const PATIENCE: Duration = Duration::from_secs(45);

/// How a pool is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// Sandboxes ready at rest; 0 makes every start a cold one.
    pub size: usize,
    /// How many of them stay thawed.
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
    /// None was ready; the next that the refill made was first.
    Queued,
    /// None was ready; one was made for the request.
    Cold,
}

impl Start {
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
        /// What kept the pool from having one.
        cause: String,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    Closed,
}

/// A pool at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// Thawed sandboxes that wait for a request.
    pub hot: usize,
    /// Paused ones.
    pub paused: usize,
    /// Sandboxes being made.
    pub making: usize,
    /// Sandboxes that shall be ready at rest.
    pub size: usize,
    /// Requests by how they got their sandbox: hot, warm, queued, cold.
    pub starts: [u64; 4],
    /// Why the last sandbox could not be made, if it could not.
    pub last_error: Option<String>,
}

/// What the pools of one server share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) images: ImageProvider,
    pub(crate) owner: Arc<Owner>,
    pub(crate) reaper: Reaper,
    /// Sandboxes made at the same time for the pools.
    pub(crate) refills: Semaphore,
    /// Sandboxes made at the same time for requests, those included that went away meanwhile.
    pub(crate) cold_starts: Semaphore,
    /// The tasks that make sandboxes: what they are doing must end before the last sweep.
    pub(crate) makers: TaskTracker,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) next_number: AtomicU64,
}

/// A pool of sandboxes that are all alike.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// The sandbox, but for its image's digest, which is empty here.
    template: SandboxSpec,
    /// The sandbox with its image resolved; gone when the engine may have lost something.
    ready: Mutex<Option<Arc<SandboxSpec>>>,
    resolving: tokio::sync::Mutex<()>,
    size: PoolSize,
    shelf: Shelf,
    making: AtomicUsize,
    trouble: Mutex<Trouble>,
    wake: Arc<Notify>,
    starts: [AtomicU64; 4],
}

/// The pool's recent failures.
#[derive(Default)]
struct Trouble {
    /// How many there were without a calm between them.
    failures: u32,
    /// When the next sandbox may be made.
    until: Option<Instant>,
    last: Option<String>,
}

impl Trouble {
    /// Doubles the pause, unless the last failure was long ago. A success in between does not count:
    /// what is made may fail at its next step.
    fn add(&mut self, error: String) {
        let now = Instant::now();
        if self.until.is_some_and(|until| now > until + CALM) {
            self.failures = 0;
        }
        let pause = BACK_OFF.0 * 2_u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        self.until = Some(now + pause.min(BACK_OFF.1));
        self.last = Some(error);
    }

    /// Something was made: there is no reason to wait any longer.
    fn ease(&mut self) {
        let now = Instant::now();
        self.until = self.until.map(|until| until.min(now));
        self.last = None;
    }
}

impl Pool {
    pub(crate) fn start(shared: Arc<Shared>, template: SandboxSpec, size: PoolSize) -> Arc<Self> {
        let pool = Arc::new(Self {
            template,
            ready: Mutex::new(None),
            resolving: tokio::sync::Mutex::new(()),
            size,
            shelf: Shelf::new(size.size, size.hot),
            making: AtomicUsize::new(0),
            trouble: Mutex::default(),
            wake: Arc::new(Notify::new()),
            starts: Default::default(),
            shared,
        });
        pool.shared.tasks.spawn(keep(Arc::downgrade(&pool), pool.shared.stop.clone()));
        pool
    }

    /// Takes a sandbox for good. Dropping the future leaves the pool as it was.
    pub(crate) async fn checkout(
        self: &Arc<Self>,
    ) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        let (sandbox, start) =
            tokio::time::timeout(PATIENCE, self.find()).await.unwrap_or_else(|_| {
                Err(CheckoutError::Waited { waited: PATIENCE, cause: self.delay() })
            })?;
        self.starts[start as usize].fetch_add(1, Ordering::Relaxed);
        Ok((sandbox, start))
    }

    async fn find(self: &Arc<Self>) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        while let Some(shelved) = self.shelf.take() {
            self.wake.notify_one();
            match thaw(shelved).await {
                Ok(found) => return Ok(found),
                Err(Unfit::Lost) => {}
                // The next one would most likely take as long.
                Err(Unfit::Stuck) => break,
            }
        }
        if self.shared.stop.is_cancelled() {
            return Err(CheckoutError::Closed);
        }
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
                next = self.shelf.next() => {
                    self.wake.notify_one();
                    match next {
                        Ok(shelved) => if let Ok((sandbox, _)) = thaw(shelved).await {
                            return Ok((sandbox, Start::Queued));
                        },
                        Err(Closed) => return Err(CheckoutError::Closed),
                    }
                }
            }
        }
    }

    /// Makes a sandbox for a request; shelves it if the request was served or has gone meanwhile.
    async fn make_for(
        self: Arc<Self>,
        mut request: oneshot::Sender<Result<Sandbox<Armed>, SandboxError>>,
    ) {
        let slot = tokio::select! {
            slot = self.shared.cold_starts.acquire() => slot,
            () = request.closed() => return,
        };
        if slot.is_err() || self.shared.stop.is_cancelled() {
            return;
        }
        if let Err(Ok(unwanted)) = request.send(self.make(None).await) {
            self.shelve(unwanted).await;
        }
    }

    async fn make(&self, slots: Option<&Semaphore>) -> Result<Sandbox<Armed>, SandboxError> {
        let was_ready = lock(&self.ready).is_some();
        let mut made = self.try_make(slots).await;
        if was_ready && matches!(&made, Err(error) if error.may_be_outdated()) {
            // The image or the volume may have gone: both are looked for again.
            *lock(&self.ready) = None;
            made = self.try_make(slots).await;
        }
        match &made {
            Ok(_) => lock(&self.trouble).ease(),
            Err(SandboxError::Closed) => {}
            Err(error) => {
                *lock(&self.ready) = None;
                self.note_failure(error);
            }
        }
        made
    }

    fn note_failure(&self, error: &dyn fmt::Display) {
        tracing::warn!(image = %self.template.image.name, %error, "a sandbox could not be made");
        lock(&self.trouble).add(error.to_string());
    }

    async fn try_make(&self, slots: Option<&Semaphore>) -> Result<Sandbox<Armed>, SandboxError> {
        let spec = self.resolve().await?;
        // Not before: fetching an image may take minutes, in which other pools need the slots.
        let _slot = match slots {
            Some(slots) => Some(slots.acquire().await.map_err(|_| SandboxError::Closed)?),
            None => None,
        };
        if self.shared.stop.is_cancelled() {
            return Err(SandboxError::Closed);
        }
        let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let lease = self.shared.reaper.lease(self.shared.owner.sandbox_name(number));
        let engine = Arc::clone(&self.shared.engine);
        let wake = Arc::clone(&self.wake);
        let on_close = move || wake.notify_one();
        Sandbox::create(engine, lease, spec, &self.shared.tasks, on_close).await
    }

    async fn resolve(&self) -> Result<Arc<SandboxSpec>, SandboxError> {
        // One at a time: the first fetches the image, the others find it.
        let _resolving = self.resolving.lock().await;
        let ready = lock(&self.ready).clone();
        if let Some(spec) = ready {
            return Ok(spec);
        }
        // Fetching may take minutes, and nobody waits for it when the server stops.
        let image = tokio::select! {
            image = self.shared.images.ensure(&self.template.image.name) => image?,
            () = self.shared.stop.cancelled() => return Err(SandboxError::Closed),
        };
        bounded(Call::Prepare, self.shared.engine.prepare(&image)).await?;
        let spec = Arc::new(SandboxSpec { image, ..self.template.clone() });
        *lock(&self.ready) = Some(Arc::clone(&spec));
        Ok(spec)
    }

    /// Puts a fresh sandbox where it is missing; without a place for it, it goes.
    async fn shelve(&self, sandbox: Sandbox<Armed>) {
        let Err(sandbox) = self.shelf.put_hot(sandbox) else {
            return;
        };
        if !self.shelf.has_room() {
            return;
        }
        match sandbox.pause().await {
            Ok(paused) => drop(self.shelf.put_paused(paused)),
            Err(error) => self.note_failure(&error),
        }
    }

    async fn refill_one(self: Arc<Self>, _place: Making) {
        if self.shared.stop.is_cancelled() {
            return;
        }
        // Failures are remembered and logged where they happen; the keeper tries again.
        if let Ok(sandbox) = self.make(Some(&self.shared.refills)).await {
            self.shelve(sandbox).await;
        }
    }

    /// Starts what is missing, unless the engine failed a moment ago. Returns when to look again.
    async fn look_over(self: &Arc<Self>) -> Duration {
        let stale = self.shelf.discard_stale(self.size.max_age);
        if stale.died_young > 0 {
            self.note_failure(&"sandboxes ended by themselves as soon as they were ready");
        } else if stale.total > 0 {
            let image = &self.template.image.name;
            tracing::info!(%image, stale = stale.total, "replacing sandboxes");
        }
        while let Some(paused) = self.shelf.take_for_promotion() {
            match paused.resume().await {
                Ok(sandbox) => self.shelve(sandbox).await,
                Err(error) => tracing::warn!(%error, "a sandbox could not be thawed ahead"),
            }
        }
        if let Some(pause) = self.backing_off() {
            return pause;
        }
        let (hot, paused) = self.shelf.len();
        let making = self.making.load(Ordering::Relaxed);
        for _ in hot + paused + making..self.size.size {
            let place = Making::new(self);
            self.shared.makers.spawn(Arc::clone(self).refill_one(place));
        }
        LOOK_OVER
    }

    fn backing_off(&self) -> Option<Duration> {
        let trouble = lock(&self.trouble);
        let left = trouble.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// What a request is waiting for.
    fn delay(&self) -> String {
        if self.resolving.try_lock().is_err() {
            return format!(
                "image {} is still being fetched, try again in some minutes",
                self.template.image.name
            );
        }
        self.last_error().unwrap_or_else(|| "the engine is very slow".to_owned())
    }

    fn last_error(&self) -> Option<String> {
        lock(&self.trouble).last.clone()
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let (hot, paused) = self.shelf.len();
        PoolStatus {
            hot,
            paused,
            making: self.making.load(Ordering::Relaxed),
            size: self.size.size,
            starts: self.starts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            last_error: self.last_error(),
        }
    }

    /// Digest of the image that sandboxes are made from now, once it is known.
    pub(crate) fn image(&self) -> Option<String> {
        let ready = lock(&self.ready);
        ready.as_ref().map(|spec| spec.image.digest.clone())
    }

    /// Drops every sandbox; nothing is handed out from now on.
    pub(crate) fn close(&self) {
        self.shelf.close();
    }
}

/// A refill that was started, counted until it is dropped.
struct Making(Arc<Pool>);

impl Making {
    fn new(pool: &Arc<Pool>) -> Self {
        pool.making.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pool))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.0.making.fetch_sub(1, Ordering::Relaxed);
        self.0.wake.notify_one();
    }
}

/// Why a sandbox from the shelf can't be used. It is gone then.
enum Unfit {
    /// It had ended, or the engine refused to thaw it.
    Lost,
    /// The engine did not thaw it in time.
    Stuck,
}

/// Brings a sandbox from the shelf to life.
async fn thaw(shelved: Shelved) -> Result<(Sandbox<Armed>, Start), Unfit> {
    match shelved {
        Shelved::Hot(sandbox) if sandbox.is_alive() => Ok((sandbox, Start::Hot)),
        Shelved::Paused(sandbox) if sandbox.is_alive() => match sandbox.resume().await {
            Ok(sandbox) => Ok((sandbox, Start::Warm)),
            Err(error) => {
                tracing::warn!(%error, "a sandbox was lost while it waited");
                Err(match error {
                    SandboxError::Engine(EngineError::Deadline { .. }) => Unfit::Stuck,
                    _ => Unfit::Lost,
                })
            }
        },
        Shelved::Hot(_) | Shelved::Paused(_) => Err(Unfit::Lost),
    }
}

/// Keeps a pool full until it is dropped or the server stops.
async fn keep(pool: std::sync::Weak<Pool>, stop: CancellationToken) {
    loop {
        let Some(strong) = pool.upgrade() else { return };
        let wake = Arc::clone(&strong.wake);
        let pause = strong.look_over().await;
        drop(strong);
        tokio::select! {
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
