//! The refill: sandboxes on their way into the idle set of a pool.
//!
//! A task for each pool maintains its idle set: it wakes when a sandbox was taken, died or grew too old.
//! Making a sandbox is always a separate task, which a request may wait for but never owns.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Pool;
use super::backoff::Backoff;
use super::idle::Check;
use crate::engine::SandboxSpec;
use crate::engine::preload::{MOST_COMPLAINTS, PreloadStatus};
use crate::lock::lock;
use crate::sandbox::{Armed, Missing, Paused, Sandbox, SandboxError};

/// Interval at which a pool is maintained if nothing happens. Dead sandboxes are noticed at once; this finds old
/// ones, and those whose files were removed.
const MAINTAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps a pool full until it is dropped or the server stops.
pub(super) async fn keep_full(pool: Weak<Pool>, stop: CancellationToken) {
    let mut files_checked = Instant::now();
    loop {
        let Some(strong) = pool.upgrade() else { return };
        let wake = Arc::clone(&strong.wake);
        let began = Instant::now();
        if strong.waiting.load(Ordering::Relaxed) == 0 {
            strong.shared.activity.settled().await;
        }
        let check = if files_checked.elapsed() < MAINTAIN_INTERVAL {
            Check::Streams
        } else {
            files_checked = Instant::now();
            Check::Files
        };
        let pause = strong.maintain(check, began.elapsed());
        drop(strong);
        tokio::select! {
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Interval at which a pool checks whether its image was replaced by another of the same name: asking Docker takes it 2 ms.
const IMAGE_INTERVAL: Duration = Duration::from_secs(5);

/// Lets a pool follow the name of its image until it is dropped or the server stops.
pub(super) async fn follow_image(pool: Weak<Pool>, stop: CancellationToken) {
    let follow = async {
        loop {
            tokio::time::sleep(IMAGE_INTERVAL).await;
            let Some(pool) = pool.upgrade() else { return };
            pool.shared.activity.settled().await;
            pool.renew_image().await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

/// A sandbox on its way into the idle set, counted until this is dropped.
struct Coming {
    pool: Arc<Pool>,
    is_thawing: bool,
}

impl Coming {
    fn new(pool: &Arc<Pool>) -> Self {
        pool.coming.fetch_add(1, Ordering::Relaxed);
        Self { pool: Arc::clone(pool), is_thawing: false }
    }

    fn thawing(pool: &Arc<Pool>) -> Self {
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

impl Pool {
    /// Makes a sandbox for a request. It goes into the idle set if the request was served or has gone meanwhile.
    pub(super) async fn make_for(
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
        let made = self.make(None).await.map(|(sandbox, _)| sandbox);
        let Err(refused) = request.send(made) else { return };
        if let Ok(sandbox) = refused {
            self.return_idle(sandbox).await;
            self.wake.notify_one();
        }
    }

    /// Starts making the missing sandboxes, unless the engine failed a moment ago. Returns when to look again. `delay` is the time
    /// that this had to wait.
    fn maintain(self: &Arc<Self>, check: Check, delay: Duration) -> Duration {
        let is_outdated = |sandbox: &SandboxSpec| self.template.is_outdated(sandbox);
        let stale = self.idle.discard_stale(check, lock(&self.size).max_age, is_outdated);
        if stale.early_exits > 0 {
            self.note_failure(&"sandboxes ended as soon as they were ready");
        } else if stale.total > 0 {
            let image = self.template.image();
            tracing::info!(%image, stale = stale.total, "replacing sandboxes that ended, grew too old or have a former image");
        }
        let next = self.rebalance_hot();
        if let Some(pause) = lock(&self.backoff).remaining() {
            return pause;
        }
        let (hot, paused) = self.idle.len();
        let coming = self.coming.load(Ordering::Relaxed);
        // Where none should wait, one is tried after a failure: otherwise nothing would show that the engine works again.
        let has_failed = self.last_error().is_some();
        let wanted = self.idle.size().max(usize::from(has_failed));
        let mut missing = hot + paused + coming..wanted;
        if !self.template.is_resolved() && has_failed {
            // One shows whether there is an image now.
            missing.end = missing.end.min(missing.start + 1);
        }
        if !missing.is_empty() {
            lock(&self.lead).delay.add(delay);
        }
        for _ in missing {
            let coming = Coming::new(self);
            self.shared.makers.spawn(Arc::clone(self).refill_one(coming));
        }
        next
    }

    /// Looks whether the image was replaced. If so, what failed with the former one is tried again, and the sandboxes that wait
    /// are replaced.
    async fn renew_image(&self) {
        match self.template.renew(&self.shared).await {
            Ok(true) => {
                *lock(&self.backoff) = Backoff::default();
                *lock(&self.preload_status) = PreloadStatus::default();
                self.wake.notify_one();
            }
            Ok(false) => {}
            // The task that makes the next sandbox reports it.
            Err(error) => {
                let image = self.template.image();
                tracing::debug!(%image, %error, "could not look whether the image was replaced");
            }
        }
    }

    /// Thaws sandboxes until as many are hot as should be, and finishes those that were left unfinished
    /// because requests waited or kept coming. Returns when to look again.
    fn rebalance_hot(self: &Arc<Self>) -> Duration {
        while let Some(paused) = self.idle.take_to_thaw(self.thawing.load(Ordering::Relaxed)) {
            let thawing = Coming::thawing(self);
            self.shared.makers.spawn(Arc::clone(self).thaw_one(paused, thawing));
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return MAINTAIN_INTERVAL;
        }
        while let Some(sandbox) = self.idle.take_untidy() {
            self.finish(sandbox);
        }
        // Thawing comes first: while modules are imported in a sandbox, no request can take it.
        if self.preloading.is_busy() || self.thawing.load(Ordering::Relaxed) > 0 {
            return MAINTAIN_INTERVAL;
        }
        if let Some(left) = self.preloading.wait(&self.shared.activity) {
            return left;
        }
        if let Some(sandbox) = self.idle.take_without_modules() {
            self.finish(sandbox);
        }
        MAINTAIN_INTERVAL
    }

    async fn refill_one(self: Arc<Self>, _coming: Coming) {
        if self.shared.stop.is_cancelled() {
            return;
        }
        // Failures are remembered and logged where they happen; the next look tries again.
        if let Ok((sandbox, creation)) = self.make(Some(&self.shared.refills)).await {
            let made = Instant::now();
            self.return_idle(sandbox).await;
            lock(&self.lead).making.add(creation + made.elapsed());
        }
    }

    async fn thaw_one(self: Arc<Self>, sandbox: Sandbox<Paused>, _coming: Coming) {
        match sandbox.resume().await {
            Ok(sandbox) => self.return_idle(sandbox).await,
            Err(error) => tracing::warn!(%error, "a sandbox could not be thawed in advance"),
        }
    }

    fn finish(self: &Arc<Self>, sandbox: Sandbox<Armed>) {
        let pool = Arc::clone(self);
        let coming = Coming::new(self);
        self.shared.makers.spawn(async move {
            pool.return_idle(sandbox).await;
            drop(coming);
        });
    }

    /// Makes a sandbox, for the idle set with one of the `slots`. Returns how long that took, too.
    async fn make(
        &self,
        slots: Option<&Semaphore>,
    ) -> Result<(Sandbox<Armed>, Duration), SandboxError> {
        let was_resolved = self.template.is_resolved();
        let mut made = self.try_make(slots).await;
        if was_resolved && matches!(&made, Err(error) if error.may_be_outdated()) {
            // The image or the runner's volume may have gone: both are looked for again.
            self.template.forget();
            made = self.try_make(slots).await;
        }
        match &made {
            Ok(_) => lock(&self.backoff).succeeded(),
            Err(SandboxError::Closed) => {}
            Err(error) => {
                self.counts.not_made.add(1);
                self.template.forget();
                self.note(error, error.may_be_of_image() && self.template.is_without_image());
            }
        }
        made
    }

    async fn try_make(
        &self,
        slots: Option<&Semaphore>,
    ) -> Result<(Sandbox<Armed>, Duration), SandboxError> {
        let spec = self.template.resolve(&self.shared).await?;
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
        let lease = self.shared.reaper.lease(self.shared.instance.sandbox_name(number));
        let engine = Arc::clone(&self.shared.engine);
        let wake = Arc::clone(&self.wake);
        let on_close = move || wake.notify_one();
        let began = Instant::now();
        let made = Sandbox::create(engine, lease, spec, &self.shared.tasks, on_close).await?;
        let took = began.elapsed();
        self.counts.made.add(took);
        Ok((made, took))
    }

    /// Brings a thawed sandbox to the point at which it waits, and puts it into the idle set, thawed or
    /// paused. If there is no room for it, it is removed.
    async fn return_idle(&self, sandbox: Sandbox<Armed>) {
        let Some(mut sandbox) = self.hand_over(sandbox) else { return };
        while let Some(missing) = sandbox.missing() {
            let _load = match missing {
                Missing::Interpreter => None,
                Missing::Modules => match self.preloading.may_load(&self.shared.activity) {
                    Some(load) => Some(load),
                    // It stays thawed, so that its modules can be imported later.
                    None => return drop(self.idle.add_hot(sandbox)),
                },
            };
            let preloaded = tokio::select! {
                biased;
                // A module may never return, and a server that stops does not wait for it.
                () = self.shared.stop.cancelled() => return,
                preloaded = sandbox.preload() => preloaded,
            };
            match preloaded {
                Ok(status) => self.note_preload(status, sandbox.missing()),
                Err(error) => return self.note_failure(&error),
            }
            let Some(thawed) = self.hand_over(sandbox) else { return };
            sandbox = thawed;
        }
        let Err(sandbox) = self.idle.add_finished(sandbox) else { return };
        if !self.idle.has_room() {
            return;
        }
        match sandbox.pause().await {
            Ok(paused) => drop(self.idle.add_paused(paused)),
            Err(error) => self.note_failure(&error),
        }
    }

    /// Gives a sandbox to a request that waits, as it is: that is sooner than a better one later, and
    /// pausing it would cost time twice. Returns it if no request waits, unless there is no room for it or its image was replaced.
    fn hand_over(&self, sandbox: Sandbox<Armed>) -> Option<Sandbox<Armed>> {
        if !self.idle.has_room() {
            return None;
        }
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Some(sandbox).filter(|sandbox| !self.template.is_outdated(&sandbox.spec));
        }
        drop(self.idle.add_hot(sandbox));
        None
    }

    pub(super) fn note_failure(&self, error: &dyn fmt::Display) {
        self.note(error, false);
    }

    fn note(&self, error: &dyn fmt::Display, is_without_image: bool) {
        let image = self.template.image();
        if lock(&self.backoff).failed(error.to_string(), is_without_image) {
            tracing::warn!(%image, %error, "a sandbox could not be made");
        } else {
            tracing::debug!(%image, %error, "a sandbox could not be made for the same reason");
        }
    }

    fn note_preload(&self, status: PreloadStatus, missing: Option<Missing>) {
        let mut known = lock(&self.preload_status);
        for complaint in &status.complaints {
            if !known.complaints.contains(complaint) && known.complaints.len() < MOST_COMPLAINTS {
                let image = self.template.image();
                tracing::warn!(%image, %complaint, "preloading failed, so programs start slower");
                known.complaints.push(complaint.clone());
            }
        }
        // Before the modules are imported it takes less memory, and may have no complaints.
        if missing.is_none() {
            *known = status;
        }
    }
}
