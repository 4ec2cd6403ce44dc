//! All pools of a server: they take requests, and shut down together.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_runner::wire::Wanted;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::images::ImageProvider;
use crate::engine::instance::Instance;
use crate::engine::limits::{ByteSize, LimitKind};
use crate::engine::preload::Want;
use crate::engine::{
    Call, Engine, EngineError, SandboxSpec, ToolGroup, Unsupported, WaitingMemory, bounded,
};
use crate::packages::PackageSet;
use crate::pool::admission::{Admission, AdmissionError, AdmissionLimits, Client};
use crate::pool::counts::{Counting, Failure, PoolCounts, SharedCounts};
pub use crate::pool::served::{ExecuteError, FoundPool, OpenError, OpenReceipt, Receipt};
use crate::pool::session::{self, Session, SessionError, SessionRequest};
use crate::pool::{
    CheckoutError, CheckoutSource, Pool, PoolSize, PoolStatus, Shared, adapt, reconcile,
};
use crate::run::outcome::Outcome;
use crate::run::{self, RunError, RunRequest};
use crate::sandbox::activity::ActivityGate;
use crate::sandbox::reaper::Reaper;
use crate::sandbox::sweep;

/// Longest time that removing everything may take when a server stops.
const REMOVE_ALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of all pools together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolsLimits {
    /// How many requests run and wait.
    pub admission: AdmissionLimits,
    /// Sandboxes made at the same time for the pools.
    pub refills: usize,
    /// Memory that waiting sandboxes of all pools may take together, if there is a bound.
    pub memory: Option<ByteSize>,
}

/// One pool's description.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// What each sandbox is.
    pub sandbox: SandboxSpec,
    /// How many there are.
    pub size: PoolSize,
}

/// What has happened in pools, by their names.
pub(super) type CountsByName = BTreeMap<String, Arc<PoolCounts>>;

/// The pools of a configuration, by the name under which requests ask for them.
pub struct Pools {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Admission,
    pub(super) pools: BTreeMap<String, Arc<Pool>>,
    /// What has happened in them, and in those of former configurations, whose programs may still run.
    pub(super) counts: CountsByName,
    /// What is configured for them.
    pub(super) sizes: BTreeMap<String, PoolSize>,
    pub(super) limits: PoolsLimits,
    /// Ends runs that outlast the drain.
    pub(super) abort: CancellationToken,
}

impl Pools {
    /// Starts pools, which fill in the background. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// When the engine can't make the sandboxes of a pool.
    pub fn start(
        engine: Arc<dyn Engine>,
        images: ImageProvider,
        instance: Arc<Instance>,
        limits: PoolsLimits,
        specs: BTreeMap<String, PoolSpec>,
    ) -> Result<Self, Unsupported> {
        for spec in specs.values() {
            engine.supports(&spec.sandbox)?;
        }
        let unenforced = engine.unenforced();
        if !unenforced.is_empty() {
            tracing::warn!("programs run without a limit of {}", LimitKind::list(&unenforced));
        }
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let activity = Arc::new(ActivityGate::new());
        let shared = Arc::new(Shared {
            reaper: Reaper::start(Arc::clone(&engine), Arc::clone(&activity), &tasks),
            engine,
            images,
            instance,
            refills: Arc::new(Semaphore::new(limits.refills)),
            cold_starts: Arc::new(Semaphore::new(limits.admission.running)),
            makers: TaskTracker::new(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            next_number: AtomicU64::new(1),
            activity,
            counts: SharedCounts::default(),
            sizing: Mutex::default(),
            called: Notify::new(),
            began: Instant::now(),
        });
        tasks.spawn(reconcile::reconcile(Arc::downgrade(&shared), stop.clone()));
        tasks.spawn(adapt::follow_calls(Arc::downgrade(&shared), stop));
        let sizes = specs.iter().map(|(name, spec)| (name.clone(), spec.size)).collect();
        let mut counts = CountsByName::default();
        let start = |(name, spec): (String, PoolSpec)| {
            let counts = Arc::clone(counts.entry(name.clone()).or_default());
            let pool = Pool::start(Arc::clone(&shared), &name, spec, counts, None);
            (name, pool)
        };
        let pools = specs.into_iter().map(start).collect();
        let admission = Admission::new(limits.admission);
        let abort = CancellationToken::new();
        let pools = Self { shared, admission, pools, counts, sizes, limits, abort };
        pools.adopt_sizes();
        Ok(pools)
    }

    /// Runs a client's request in a fresh sandbox of the pool `name`. Dropping the future ends the program
    /// and removes the sandbox.
    ///
    /// # Errors
    ///
    /// See [`ExecuteError`]. What the program did wrong is not an error but an [`Outcome`].
    pub async fn execute(
        &self,
        name: &str,
        client: &Client,
        request: &RunRequest,
    ) -> Result<(Outcome, Receipt), ExecuteError> {
        let pool = self.pools.get(name).ok_or_else(|| ExecuteError::NoSuchPool(name.to_owned()))?;
        let counting = Counting::new(&pool.counts);
        let result = tokio::select! {
            biased;
            () = self.abort.cancelled() => Err(AdmissionError::Closed.into()),
            result = self.admit_and_run(pool, client, request) => result,
        };
        match &result {
            Ok((outcome, receipt)) => {
                counting.end(None);
                pool.counts.executed(outcome, receipt);
            }
            Err(error) => {
                let failure = Failure::of(error);
                counting.end(Some(failure));
                self.shared.counts.failed(name, failure, error.to_string());
            }
        }
        result
    }

    async fn admit_and_run(
        &self,
        pool: &Arc<Pool>,
        client: &Client,
        request: &RunRequest,
    ) -> Result<(Outcome, Receipt), ExecuteError> {
        let arrived = Instant::now();
        let _admitted = self.admission.enter(client).await?;
        let admitted = Instant::now();
        self.shared.counts.queue.add(admitted - arrived);
        let mut want = pool.expect(request);
        let of = client.to_string();
        let found = pool.note_call();
        let mut is_first = true;
        let mut source = CheckoutSource::IdleSet;
        loop {
            let checked_out = pool.checkout(source, want.interpreter == Wanted::Loaded).await;
            let (sandbox, start) = checked_out.map_err(|error| self.with_ready(error))?;
            let checkout = admitted.elapsed();
            let _running = pool.counts.in_use.begin(client, start);
            let image = sandbox.spec.image.digest.clone();
            let run = run::run(sandbox, request, &want, &of, &self.shared.tasks);
            match self.shared.activity.during(run).await {
                // Each retry takes a sandbox from the idle set, so this ends.
                Err(RunError::NotThawed(error)) => {
                    tracing::warn!(%error, "a paused sandbox could not be thawed, trying another");
                    if matches!(error, EngineError::Deadline { .. }) {
                        // The next one would most likely take as long.
                        source = CheckoutSource::New;
                    }
                }
                // The program has not begun, so a second sandbox can have it.
                Err(
                    error @ (RunError::NotStarted(_)
                    | RunError::NotForked(_)
                    | RunError::NotBound(_)),
                ) if is_first => {
                    tracing::warn!(%error, "the program did not start, trying another sandbox");
                    if matches!(error, RunError::NotForked(_)) {
                        // The next fork may fail in the same way, and an interpreter of its own can run the program.
                        want = Want::only(Wanted::New);
                    }
                    is_first = false;
                    // The idle ones may have ended with it, and their streams not yet.
                    source = CheckoutSource::New;
                }
                ran => {
                    pool.count(start);
                    let (outcome, run) = ran?;
                    pool.note_served(found);
                    let queue = admitted - arrived;
                    let unenforced = self.shared.engine.unenforced();
                    return Ok((
                        outcome,
                        Receipt { start, found, queue, checkout, run, image, unenforced },
                    ));
                }
            }
        }
    }

    /// Takes a sandbox of the pool `name` for a client's session. Dropping the future removes the sandbox.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub async fn open_session(
        &self,
        name: &str,
        client: &Client,
        request: &SessionRequest,
    ) -> Result<(Session, OpenReceipt), OpenError> {
        let pool = self.pools.get(name).ok_or_else(|| ExecuteError::NoSuchPool(name.to_owned()))?;
        let counting = Counting::new(&pool.counts);
        let opened = tokio::select! {
            biased;
            () = self.abort.cancelled() => Err(ExecuteError::from(AdmissionError::Closed).into()),
            opened = self.admit_and_open(pool, client, request) => opened,
        };
        let failure = opened.as_ref().err().map(Failure::of_opening);
        counting.end(failure);
        if let (Err(error), Some(failure)) = (&opened, failure) {
            self.shared.counts.failed(name, failure, error.to_string());
        }
        opened
    }

    async fn admit_and_open(
        &self,
        pool: &Arc<Pool>,
        client: &Client,
        request: &SessionRequest,
    ) -> Result<(Session, OpenReceipt), OpenError> {
        let arrived = Instant::now();
        let slot = self.admission.enter(client).await.map_err(ExecuteError::from)?;
        let queue = arrived.elapsed();
        self.shared.counts.queue.add(queue);
        let want = pool.for_session(request);
        let found = pool.note_call();
        let mut source = CheckoutSource::IdleSet;
        loop {
            let began = Instant::now();
            let checked_out = pool.checkout(source, want.interpreter == Wanted::Loaded).await;
            let (mut sandbox, start) =
                checked_out.map_err(|error| ExecuteError::from(self.with_ready(error)))?;
            let checkout = began.elapsed();
            let began = Instant::now();
            let open = async {
                let packages = request.packages.as_ref();
                let prepared = run::prepare(&mut sandbox, request.resources, packages, &want).await;
                let prepared = prepared.map_err(ExecuteError::from)?;
                session::open(&mut sandbox, request, prepared).await.map_err(OpenError::from)
            };
            match self.shared.activity.during(open).await {
                // Nothing of the session has begun, so a new sandbox can have it. The idle ones may all have the same fault.
                Err(error) if source == CheckoutSource::IdleSet && !error.is_of_any_sandbox() => {
                    tracing::warn!(%error, "a session did not begin, trying another sandbox");
                    source = CheckoutSource::New;
                }
                opened => {
                    pool.count(start);
                    let open = began.elapsed();
                    let receipt = OpenReceipt { start, found, queue, checkout, open };
                    return opened.map(|opened| {
                        pool.note_served(found);
                        pool.counts.opened(&receipt);
                        let (shared, abort) = (&self.shared, self.abort.clone());
                        (session::begin(sandbox, opened, request, slot, shared, abort), receipt)
                    });
                }
            }
        }
    }

    /// Brings a set of packages to where the sandboxes of the pool `name` are made, so that the first request with it does not have
    /// to wait for that. Dropping the future stops waiting; what was brought so far is of no use, and is removed with the rest at
    /// the end of the server.
    ///
    /// # Errors
    ///
    /// When there is no such pool, its image is not there, or the engine can't take the set.
    pub async fn provide_packages(&self, name: &str, set: &PackageSet) -> Result<(), ExecuteError> {
        let pool = self.pools.get(name).ok_or_else(|| ExecuteError::NoSuchPool(name.to_owned()))?;
        let provide = async {
            let spec = pool.template.resolve(&self.shared).await.map_err(CheckoutError::from)?;
            let provided = self.shared.engine.provide(set, &spec.image);
            bounded(Call::Provide, provided).await.map_err(RunError::Packages)?;
            Ok(())
        };
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => Err(AdmissionError::Closed.into()),
            provided = provide => provided,
        }
    }

    /// Takes back the set of packages with this hash from where sandboxes are made. No sandbox may have it anymore: that is so when
    /// this server has no reference to the set.
    ///
    /// # Errors
    ///
    /// When the engine can't remove it. It is removed at the end of the server, too.
    pub async fn withdraw_packages(&self, hash: &str) -> Result<(), EngineError> {
        bounded(Call::Withdraw, self.shared.engine.withdraw(hash)).await
    }

    /// A group with limits for a tool that works for this server outside of sandboxes, if the engine has such groups.
    pub async fn tool_group(
        &self,
        name: String,
        memory: ByteSize,
        processes: u32,
    ) -> Option<Box<dyn ToolGroup>> {
        self.shared.engine.tool_group(name, memory, processes).await
    }

    /// What helps if there are more requests than the engine makes sandboxes for, in a sentence.
    pub fn advice_when_busy(&self) -> Option<&'static str> {
        self.shared.engine.advice_when_busy()
    }

    /// Names the pools that a caller can use meanwhile, if the image of the one it asked for is still coming.
    fn with_ready(&self, mut error: CheckoutError) -> CheckoutError {
        if let CheckoutError::ImageComing { ready, .. } = &mut error {
            let is_ready = |(_, pool): &(&String, &Arc<Pool>)| pool.has_image();
            *ready = self.pools.iter().filter(is_ready).map(|(name, _)| name.clone()).collect();
        }
        error
    }

    /// The pools' state, by name.
    pub fn status(&self) -> BTreeMap<&str, PoolStatus> {
        self.pools.iter().map(|(name, pool)| (name.as_str(), pool.status())).collect()
    }

    /// What has happened in each pool since the start, by its name. Those of former configurations are among them.
    pub fn counts(&self) -> impl Iterator<Item = (&str, &PoolCounts)> {
        self.counts.iter().map(|(name, counts)| (name.as_str(), &**counts))
    }

    /// The same of one pool, if there was one of this name.
    pub fn counts_of(&self, name: &str) -> Option<&PoolCounts> {
        self.counts.get(name).map(|counts| &**counts)
    }

    /// Counts a cell or command of a session that was not run, if that was not for a reason of its own.
    pub fn count_failed_cell(&self, name: &str, error: &SessionError) {
        let Some(failure) = Failure::of_cell(error) else { return };
        self.count_failure(name, failure, error.to_string());
    }

    /// Counts what was not run, for a reason that is not the pools'.
    pub fn count_failure(&self, name: &str, failure: Failure, message: String) {
        if let Some(counts) = self.counts_of(name) {
            counts.failures[failure as usize].add(1);
        }
        self.shared.counts.failed(name, failure, message);
    }

    /// What has happened in all pools together since the start.
    pub fn shared_counts(&self) -> &SharedCounts {
        &self.shared.counts
    }

    /// Used sandboxes that were removed since the start.
    pub fn removed(&self) -> u64 {
        self.shared.reaper.removed()
    }

    /// Templates that the engine has ready, if it has templates.
    pub fn templates(&self) -> Option<usize> {
        self.shared.engine.templates()
    }

    /// Memory of the sandboxes that wait in each pool, and of the templates that they share, if the engine can tell.
    pub async fn memory(&self) -> BTreeMap<&str, WaitingMemory> {
        let mut found = BTreeMap::new();
        for (name, pool) in &self.pools {
            if let Some(memory) = pool.measure().await {
                found.insert(name.as_str(), memory);
            }
        }
        found
    }

    /// Runs a task beside those of the pools. It must end by itself when the pools are closed.
    pub fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks.spawn(task);
    }

    /// Limits that do not hold, because the engine can't enforce them here.
    pub fn unenforced(&self) -> Vec<LimitKind> {
        self.shared.engine.unenforced()
    }

    /// Requests that run, and requests that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.admission.running(), self.admission.waiting())
    }

    /// The clients with requests that run or wait, and how many of each they have.
    pub fn clients(&self) -> Vec<(Client, usize, usize)> {
        self.admission.clients()
    }

    /// Used sandboxes that are not removed yet.
    pub fn leaving(&self) -> usize {
        self.shared.reaper.leaving()
    }

    /// Digest of the image that a pool's sandboxes are made from, once it is known.
    pub fn image(&self, name: &str) -> Option<String> {
        self.pools.get(name)?.image()
    }

    /// Notes that the engine can't make sandboxes. Each pool tries again until one was made.
    pub fn note_failure(&self, error: &EngineError) {
        for pool in self.pools.values() {
            pool.note_failure(error);
        }
    }

    /// Shuts down: refuses new requests, lets running ones go on for `drain`, then ends them, and removes
    /// everything that this instance has on the engine.
    ///
    /// # Errors
    ///
    /// When the engine did not let everything be removed; the next start sweeps it.
    pub async fn close(&self, drain: Duration) -> Result<(), EngineError> {
        self.shared.stop.cancel();
        self.admission.close();
        self.close_pools();
        self.shared.reaper.hurry();
        let idle = async {
            while self.admission.running() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let drained = tokio::time::timeout(drain, idle).await;
        if drained.is_err() {
            tracing::warn!(
                running = self.admission.running(),
                "the time to drain is over, ending the requests that still run"
            );
        }
        self.abort.cancel();
        let remove_all = async {
            self.shared.makers.close();
            self.shared.makers.wait().await;
            self.shared.reaper.idle().await;
            sweep::sweep_own(&*self.shared.engine, &self.shared.instance).await
        };
        let swept = tokio::time::timeout(REMOVE_ALL_TIMEOUT, remove_all).await.unwrap_or(Err(
            EngineError::Deadline { call: Call::Remove, deadline: REMOVE_ALL_TIMEOUT },
        ))?;
        tracing::info!("all sandboxes were removed; the last sweep has found {swept}");
        Ok(())
    }

    fn close_pools(&self) {
        for pool in self.pools.values() {
            pool.close();
        }
    }
}
