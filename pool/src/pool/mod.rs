//! One pool: sandboxes of one image, made ahead of the requests.
//!
//! A keeper task refills the shelf whenever something was taken, died or grew old. Making a
//! sandbox is always a task of its own, which a request may wait for but never owns: a request that
//! goes away cuts no call to the engine short, and what was made for it goes on the shelf.

pub mod admission;
mod idle;
pub mod pools;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::images::ImageProvider;
use crate::engine::instance::Instance;
use crate::engine::{Call, Engine, SandboxSpec, bounded};
use crate::lock::lock;
use crate::pool::idle::{Closed, Idle, IdleSet};
use crate::run::preload::PreloadStatus;
use crate::run::workspace::Workspace;
use crate::sandbox::activity::ActivityGate;
use crate::sandbox::reaper::Reaper;
use crate::sandbox::{Armed, Missing, Paused, Sandbox, SandboxError};

/// How often a pool is looked over without an occasion. Deaths are noticed when they happen; this
/// finds what has grown old.
const MAINTAIN_INTERVAL: Duration = Duration::from_secs(10);

/// First and longest pause after a sandbox could not be made.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// After this long without a failure the next one is the first again.
const CALM: Duration = Duration::from_secs(60);

/// How long a request waits for a sandbox that is not there yet. Hosts give a call up after 60 s,
/// and by then shall have been told what is missing.
const PATIENCE: Duration = Duration::from_secs(45);

/// Sandboxes of a pool in which modules are imported at the same time.
const LOADS: usize = 1;

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

/// Where a request's sandbox may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The shelf, if one is there.
    IdleSet,
    /// Not the shelf, where the others may be no better than the one that was there.
    Making,
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
    /// The interpreters in the last sandbox in which some were started.
    pub preload: PreloadStatus,
}

/// What the pools of one server share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) images: ImageProvider,
    pub(crate) owner: Arc<Instance>,
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
    pub(crate) quiet: Arc<ActivityGate>,
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
    shelf: IdleSet,
    /// Sandboxes that are on their way to the shelf.
    coming: AtomicUsize,
    /// Those of them that are being thawed for the front.
    thawing: AtomicUsize,
    /// Requests that found the shelf empty.
    waiting: AtomicUsize,
    /// Sandboxes in which modules may be imported at the same time.
    loads: Semaphore,
    /// Requests that wanted modules, and used up what had been done ahead for the next one that does.
    preload_credit: AtomicUsize,
    preload: Mutex<PreloadStatus>,
    trouble: Mutex<Backoff>,
    wake: Arc<Notify>,
    starts: [AtomicU64; 4],
}

/// The pool's recent failures.
#[derive(Default)]
struct Backoff {
    /// How many there were without a calm between them.
    failures: u32,
    /// When the next sandbox may be made.
    until: Option<Instant>,
    last: Option<String>,
}

impl Backoff {
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
            shelf: IdleSet::new(size.size, size.hot),
            coming: AtomicUsize::new(0),
            thawing: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            loads: Semaphore::new(LOADS),
            preload_credit: AtomicUsize::new(0),
            preload: Mutex::default(),
            trouble: Mutex::default(),
            wake: Arc::new(Notify::new()),
            starts: Default::default(),
            shared,
        });
        pool.shared.tasks.spawn(keep(Arc::downgrade(&pool), pool.shared.stop.clone()));
        pool
    }

    /// Tells whether a request is likely to want the modules. Others like it may follow, so those of the
    /// next sandbox do not have to wait until it is calm.
    pub(crate) fn expect(&self, workspace: &Workspace) -> bool {
        let preload = self.template.preload.as_ref();
        let wants_modules = preload.is_some_and(|preload| preload.suits(workspace));
        if wants_modules {
            let more = |preload_credit: usize| {
                (preload_credit < self.size.size).then_some(preload_credit + 1)
            };
            // As many as there are places is enough.
            let _ = self.preload_credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
        wants_modules
    }

    /// Takes a sandbox for good. Dropping the future leaves the pool as it was.
    pub(crate) async fn checkout(
        self: &Arc<Self>,
        from: From,
        wants_modules: bool,
    ) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        let found = tokio::time::timeout(PATIENCE, self.find(from, wants_modules)).await;
        found.unwrap_or_else(|_| {
            Err(CheckoutError::Waited { waited: PATIENCE, cause: self.delay() })
        })
    }

    /// Counts a request that was served.
    pub(crate) fn count(&self, start: Start) {
        self.starts[start as usize].fetch_add(1, Ordering::Relaxed);
    }

    async fn find(
        self: &Arc<Self>,
        from: From,
        wants_modules: bool,
    ) -> Result<(Sandbox<Armed>, Start), CheckoutError> {
        while from == From::IdleSet
            && let Some(shelved) = self.shelf.take(wants_modules)
        {
            self.wake.notify_one();
            if let Some(found) = self.bring_to_life(shelved) {
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
                next = self.shelf.next(), if from == From::IdleSet => {
                    self.wake.notify_one();
                    match next {
                        Ok(shelved) => if let Some((sandbox, _)) = self.bring_to_life(shelved) {
                            return Ok((sandbox, Start::Queued));
                        },
                        Err(Closed) => return Err(CheckoutError::Closed),
                    }
                }
            }
        }
    }

    /// A sandbox from the shelf, if it has not ended there.
    fn bring_to_life(&self, shelved: Idle) -> Option<(Sandbox<Armed>, Start)> {
        match shelved {
            Idle::Hot(sandbox) if sandbox.is_alive() => Some((sandbox, Start::Hot)),
            Idle::Paused(sandbox) if sandbox.is_alive() => {
                Some((sandbox.begin_to_resume(&self.shared.makers), Start::Warm))
            }
            Idle::Hot(_) | Idle::Paused(_) => None,
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
            self.return_idle(unwanted).await;
            self.wake.notify_one();
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
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => return Err(SandboxError::Closed),
            () = self.shared.reaper.has_room() => {}
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

    /// Brings a thawed sandbox to the point at which it shall wait, and puts it where one is missing.
    /// Without a place for it, it goes.
    async fn return_idle(&self, sandbox: Sandbox<Armed>) {
        let Some(mut sandbox) = self.hand_over(sandbox) else { return };
        while let Some(missing) = sandbox.missing() {
            let _load = match missing {
                Missing::Interpreter => None,
                Missing::Modules => match self.may_load() {
                    Some(load) => Some(load),
                    // It stays thawed, for the time that is left to be made use of.
                    None => return drop(self.shelf.put_hot(sandbox)),
                },
            };
            match sandbox.preload().await {
                Ok(status) => self.note_preload(status, sandbox.missing()),
                Err(error) => return self.note_failure(&error),
            }
            let Some(thawed) = self.hand_over(sandbox) else { return };
            sandbox = thawed;
        }
        let Err(sandbox) = self.shelf.put_to_front(sandbox) else { return };
        if !self.shelf.has_room() {
            return;
        }
        match sandbox.pause().await {
            Ok(paused) => drop(self.shelf.put_paused(paused)),
            Err(error) => self.note_failure(&error),
        }
    }

    /// Gives a sandbox to a request that waits, as it is: that is sooner than a better one later, and
    /// pausing it would be time lost twice. Returns it if nobody waits, unless there is no place for it.
    fn hand_over(&self, sandbox: Sandbox<Armed>) -> Option<Sandbox<Armed>> {
        if !self.shelf.has_room() {
            return None;
        }
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Some(sandbox);
        }
        drop(self.shelf.put_hot(sandbox));
        None
    }

    /// Whether modules may be imported now, which keeps a core busy for as long as making many sandboxes
    /// does: one at a time, and only when it is calm, unless a request has used some.
    fn may_load(&self) -> Option<SemaphorePermit<'_>> {
        let load = self.loads.try_acquire().ok()?;
        let less = |preload_credit: usize| preload_credit.checked_sub(1);
        let is_owed =
            self.preload_credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        (is_owed || self.shared.quiet.until_calm().is_none()).then_some(load)
    }

    fn note_preload(&self, status: PreloadStatus, missing: Option<Missing>) {
        let mut known = lock(&self.preload);
        for complaint in &status.complaints {
            if !known.complaints.contains(complaint) {
                let image = &self.template.image.name;
                tracing::warn!(%image, %complaint, "programs are started plainly");
                known.complaints.push(complaint.clone());
            }
        }
        // What is not all there yet takes less memory, and may have nothing to complain of.
        if missing.is_none() {
            *known = status;
        }
    }

    async fn refill_one(self: Arc<Self>, _coming: Coming) {
        if self.shared.stop.is_cancelled() {
            return;
        }
        // Failures are remembered and logged where they happen; the keeper tries again.
        if let Ok(sandbox) = self.make(Some(&self.shared.refills)).await {
            self.return_idle(sandbox).await;
        }
    }

    async fn thaw_one(self: Arc<Self>, sandbox: Sandbox<Paused>, _coming: Coming) {
        match sandbox.resume().await {
            Ok(sandbox) => self.return_idle(sandbox).await,
            Err(error) => tracing::warn!(%error, "a sandbox could not be thawed ahead"),
        }
    }

    /// Starts what is missing, unless the engine failed a moment ago. Returns when to look again.
    fn maintain(self: &Arc<Self>) -> Duration {
        let stale = self.shelf.discard_stale(self.size.max_age);
        if stale.early_exits > 0 {
            self.note_failure(&"sandboxes ended by themselves as soon as they were ready");
        } else if stale.total > 0 {
            let image = &self.template.image.name;
            tracing::info!(%image, stale = stale.total, "replacing sandboxes");
        }
        let tidied = self.rebalance_hot();
        if let Some(pause) = self.backing_off() {
            return pause;
        }
        let (hot, paused) = self.shelf.len();
        let coming = self.coming.load(Ordering::Relaxed);
        for _ in hot + paused + coming..self.size.size {
            let coming = Coming::new(self);
            self.shared.makers.spawn(Arc::clone(self).refill_one(coming));
        }
        tidied
    }

    /// Thaws what is missing at the front, and finishes what was left there unfinished because requests
    /// waited or kept coming. Returns when to look again.
    fn rebalance_hot(self: &Arc<Self>) -> Duration {
        while let Some(paused) = self.shelf.take_to_thaw(self.thawing.load(Ordering::Relaxed)) {
            let thawing = Coming::to_the_front(self);
            self.shared.makers.spawn(Arc::clone(self).thaw_one(paused, thawing));
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return MAINTAIN_INTERVAL;
        }
        while let Some(sandbox) = self.shelf.take_untidy() {
            self.finish(sandbox);
        }
        // The front comes first: while modules are imported in a sandbox, it is not on the shelf.
        if self.loads.available_permits() == 0 || self.thawing.load(Ordering::Relaxed) > 0 {
            return MAINTAIN_INTERVAL;
        }
        if self.preload_credit.load(Ordering::Relaxed) == 0
            && let Some(left) = self.shared.quiet.until_calm()
        {
            return left;
        }
        if let Some(sandbox) = self.shelf.take_without_modules() {
            self.finish(sandbox);
        }
        MAINTAIN_INTERVAL
    }

    fn finish(self: &Arc<Self>, sandbox: Sandbox<Armed>) {
        let pool = Arc::clone(self);
        let coming = Coming::new(self);
        self.shared.makers.spawn(async move {
            pool.return_idle(sandbox).await;
            drop(coming);
        });
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
        self.last_error().unwrap_or_else(|| match self.shared.reaper.leaving() {
            0 => "the engine is very slow".to_owned(),
            leaving => format!("the engine is very slow, {leaving} sandboxes wait to be removed"),
        })
    }

    fn last_error(&self) -> Option<String> {
        lock(&self.trouble).last.clone()
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let (hot, paused) = self.shelf.len();
        PoolStatus {
            hot,
            paused,
            making: self.coming.load(Ordering::Relaxed),
            size: self.size.size,
            starts: self.starts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            last_error: self.last_error(),
            preload: lock(&self.preload).clone(),
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

/// A sandbox on its way to the shelf, counted until this is dropped.
struct Coming {
    pool: Arc<Pool>,
    is_thawing: bool,
}

impl Coming {
    fn new(pool: &Arc<Pool>) -> Self {
        pool.coming.fetch_add(1, Ordering::Relaxed);
        Self { pool: Arc::clone(pool), is_thawing: false }
    }

    fn to_the_front(pool: &Arc<Pool>) -> Self {
        pool.thawing.fetch_add(1, Ordering::Relaxed);
        let mut coming = Self::new(pool);
        coming.is_thawing = true;
        coming
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.pool.coming.fetch_sub(1, Ordering::Relaxed);
        if self.is_thawing {
            self.pool.thawing.fetch_sub(1, Ordering::Relaxed);
        }
        self.pool.wake.notify_one();
    }
}

/// One more in a count, until this is dropped.
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

/// Keeps a pool full until it is dropped or the server stops.
async fn keep(pool: std::sync::Weak<Pool>, stop: CancellationToken) {
    loop {
        let Some(strong) = pool.upgrade() else { return };
        let wake = Arc::clone(&strong.wake);
        if strong.waiting.load(Ordering::Relaxed) == 0 {
            strong.shared.quiet.over().await;
        }
        let pause = strong.maintain();
        drop(strong);
        tokio::select! {
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
