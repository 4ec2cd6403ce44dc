//! A request on its way: it is admitted, takes a sandbox of its pool, and gets another if nothing of it has begun in the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isolator_runner::wire::{Opened, Wanted};
use tokio::time::Instant;

use super::admission::{AdmissionError, Admitted, Client};
use super::counts::{Counting, Failure};
use super::pools::Pools;
use super::receipt::{ExecuteError, FoundPool, OpenReceipt, Receipt};
use super::session::{self, ComingKernel, Session, SessionRequest};
use super::{CheckoutSource, Pool, Start};
use crate::engine::EngineError;
use crate::engine::preload::Want;
use crate::run::outcome::Outcome;
use crate::run::{self, RunError, RunRequest, RunTimes};
use crate::sandbox::{Armed, Sandbox};

/// Work of a request in a sandbox.
trait Work: Sync {
    /// Its result.
    type Done: Send;

    /// Whether a program of the client runs.
    const RUNS_PROGRAM: bool;

    /// The interpreter that the request wants.
    fn want(&self, pool: &Pool) -> Want;

    /// How long it waits for a slot, if not for as long as others.
    fn max_queue(&self) -> Option<Duration> {
        None
    }

    /// Does the work. Dropping the future removes the sandbox.
    fn run(
        &self,
        pool: &Pool,
        sandbox: Sandbox<Armed>,
        start: Start,
        want: &Want,
    ) -> impl Future<Output = Result<Self::Done, ExecuteError>> + Send;
}

/// A program that runs in the sandbox, which is gone afterwards.
struct ProgramWork<'a> {
    client: &'a Client,
    request: &'a RunRequest,
}

impl Work for ProgramWork<'_> {
    type Done = (Outcome, RunTimes);

    const RUNS_PROGRAM: bool = true;

    fn want(&self, pool: &Pool) -> Want {
        pool.expect(self.request)
    }

    fn max_queue(&self) -> Option<Duration> {
        self.request.max_queue
    }

    async fn run(
        &self,
        pool: &Pool,
        sandbox: Sandbox<Armed>,
        start: Start,
        want: &Want,
    ) -> Result<Self::Done, ExecuteError> {
        let _running = pool.counts.in_use.begin(self.client, start);
        Ok(run::run(sandbox, self.request, want, self.client, &pool.shared.tasks).await?)
    }
}

/// A session that opens in the sandbox, and keeps it.
struct SessionWork<'a>(&'a SessionRequest);

impl Work for SessionWork<'_> {
    type Done = (Sandbox<Armed>, Opened, Option<ComingKernel>);

    const RUNS_PROGRAM: bool = false;

    fn want(&self, pool: &Pool) -> Want {
        pool.for_session(self.0)
    }

    fn max_queue(&self) -> Option<Duration> {
        self.0.max_queue
    }

    async fn run(
        &self,
        pool: &Pool,
        mut sandbox: Sandbox<Armed>,
        _: Start,
        want: &Want,
    ) -> Result<Self::Done, ExecuteError> {
        let SessionRequest { resources, packages, .. } = self.0;
        let prepared = run::prepare(&mut sandbox, *resources, packages.as_ref(), want).await?;
        let tasks = &pool.shared.tasks;
        let (opened, kernel) = session::open(&mut sandbox, self.0, prepared, tasks).await?;
        Ok((sandbox, opened, kernel))
    }
}

/// A request that was served, and how.
struct WorkDone<T> {
    done: T,
    slot: Admitted,
    start: Start,
    found: FoundPool,
    queue: Duration,
    checkout: Duration,
    /// From the sandbox to the end of the work.
    work: Duration,
    image: String,
}

impl Pools {
    /// Runs a client's request in a fresh sandbox of the pool `name`. Dropping the future ends the program
    /// and removes the sandbox.
    ///
    /// # Errors
    ///
    /// See [`ExecuteError`]. A failure of the program is not an error but an [`Outcome`].
    pub async fn execute(
        &self,
        name: &str,
        client: &Client,
        request: &RunRequest,
    ) -> Result<(Outcome, Receipt), ExecuteError> {
        let pool = self.pool(name)?;
        let served = self.serve(name, pool, client, ProgramWork { client, request }).await?;
        let WorkDone { done: (outcome, run), start, found, queue, checkout, image, .. } = served;
        let unenforced = self.shared.engine.unenforced();
        let receipt = Receipt { start, found, queue, checkout, run, image, unenforced };
        pool.counts.executed(&outcome, &receipt);
        Ok((outcome, receipt))
    }

    /// Takes a sandbox of the pool `name` for a client's session. Dropping the future removes the sandbox.
    ///
    /// # Errors
    ///
    /// See [`ExecuteError`].
    pub async fn open_session(
        &self,
        name: &str,
        client: &Client,
        request: &SessionRequest,
    ) -> Result<(Session, OpenReceipt), ExecuteError> {
        let pool = self.pool(name)?;
        let served = self.serve(name, pool, client, SessionWork(request)).await?;
        let WorkDone {
            done: (sandbox, opened, kernel),
            slot,
            start,
            found,
            queue,
            checkout,
            work,
            ..
        } = served;
        let receipt = OpenReceipt { start, found, queue, checkout, open: work };
        pool.counts.opened(&receipt);
        let (shared, abort) = (&self.shared, self.abort.clone());
        Ok((session::begin(sandbox, opened, kernel, request, slot, shared, abort), receipt))
    }

    /// Serves a request, and counts it if it has no outcome.
    async fn serve<W: Work>(
        &self,
        name: &str,
        pool: &Arc<Pool>,
        client: &Client,
        work: W,
    ) -> Result<WorkDone<W::Done>, ExecuteError> {
        let counting = Counting::new(&pool.counts);
        let is_at_work = AtomicBool::new(false);
        let served = tokio::select! {
            biased;
            () = self.abort.cancelled() => {
                match W::RUNS_PROGRAM && is_at_work.load(Ordering::Relaxed) {
                    true => Err(ExecuteError::Aborted),
                    false => Err(AdmissionError::Closed.into()),
                }
            }
            served = self.admit_and_work(pool, client, work, &is_at_work) => served,
        };
        let failure = served.as_ref().err().map(Failure::of);
        counting.end(failure);
        if let (Err(error), Some(failure)) = (&served, failure) {
            self.shared.counts.failed(name, failure, error.to_string());
        }
        served
    }

    /// Admits a request and does its work. `is_at_work` is set while that is done in a sandbox.
    async fn admit_and_work<W: Work>(
        &self,
        pool: &Arc<Pool>,
        client: &Client,
        work: W,
        is_at_work: &AtomicBool,
    ) -> Result<WorkDone<W::Done>, ExecuteError> {
        let arrived = Instant::now();
        let slot = self.admission.enter_within(client, work.max_queue()).await?;
        let admitted = Instant::now();
        let queue = admitted - arrived;
        self.shared.counts.queue.add(queue);
        let mut want = work.want(pool);
        let found = pool.note_call();
        let mut source = CheckoutSource::IdleSet;
        let mut is_first = true;
        loop {
            let checked_out = pool.checkout(source, want.interpreter == Wanted::Loaded).await;
            let (sandbox, start) = checked_out.map_err(|error| self.with_ready(error))?;
            let began = Instant::now();
            let image = sandbox.spec.image.digest.clone();
            is_at_work.store(true, Ordering::Relaxed);
            let done = self.shared.activity.during(work.run(pool, sandbox, start, &want)).await;
            let error = match done {
                Ok(done) => {
                    pool.count(start);
                    pool.note_served(found);
                    let (checkout, work) = (began - admitted, began.elapsed());
                    return Ok(WorkDone { done, slot, start, found, queue, checkout, work, image });
                }
                Err(error) => error,
            };
            match &error {
                // Each retry takes a sandbox from the idle set, so this ends.
                ExecuteError::Run(RunError::NotThawed(cause)) => {
                    if matches!(cause, EngineError::Deadline { .. }) {
                        // The next one would most likely take as long.
                        source = CheckoutSource::New;
                    }
                }
                error if is_first && error.has_not_begun() => {
                    is_first = false;
                    // The idle ones may have ended with it, and their streams not yet.
                    source = CheckoutSource::New;
                    if matches!(error, ExecuteError::Run(RunError::NotForked(_))) {
                        // The next fork may fail in the same way, and a new interpreter can run the program.
                        want = Want::only(Wanted::New);
                    }
                }
                _ => {
                    pool.count(start);
                    return Err(error);
                }
            }
            is_at_work.store(false, Ordering::Relaxed);
            tracing::warn!(%error, "a request has not begun in its sandbox, trying another");
        }
    }
}
