//! All pools of a server: they take requests, and shut down together.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::images::ImageProvider;
use crate::engine::instance::Instance;
use crate::engine::limits::{ByteSize, LimitKind};
use crate::engine::{
    Call, Engine, EngineError, SandboxSpec, ToolGroup, Unsupported, WaitingMemory, bounded,
};
use crate::lock::lock;
use crate::packages::PackageSet;
use crate::pool::admission::{Admission, AdmissionError, AdmissionLimits, Client};
use crate::pool::counts::{Failure, PoolCounts, SharedCounts};
pub use crate::pool::receipt::{ExecuteError, FoundPool, OpenReceipt, Receipt};
use crate::pool::session::SessionError;
use crate::pool::sizing::{Seen, Size};
use crate::pool::{CheckoutError, Pool, PoolSize, PoolStatus, Shared, adapt, reconcile};
use crate::run::RunError;
use crate::sandbox::activity::ActivityGate;
use crate::sandbox::reaper::Reaper;
use crate::sandbox::sweep;

/// Longest time that removing everything may take when a server stops.
const REMOVE_ALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of all pools together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolsLimits {
    /// Numbers of requests that run and wait.
    pub admission: AdmissionLimits,
    /// Sandboxes made at the same time for the pools.
    pub refills: usize,
    /// Memory that waiting sandboxes of all pools may take together, if there is a bound.
    pub memory: Option<ByteSize>,
}

/// One pool's description.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// Its sandboxes.
    pub sandbox: SandboxSpec,
    /// Their number.
    pub size: PoolSize,
}

/// Counts of pools, by their names.
pub(super) type CountsByName = BTreeMap<String, Arc<PoolCounts>>;

/// The pools of a configuration, by the name under which requests ask for them.
pub struct Pools {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Admission,
    pub(super) pools: BTreeMap<String, Arc<Pool>>,
    /// Their counts, and those of pools of former configurations, whose programs may still run.
    pub(super) counts: CountsByName,
    /// Their configured sizes.
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
        let admission = Admission::with_server_slots(limits.admission);
        let abort = CancellationToken::new();
        let pools = Self { shared, admission, pools, counts, sizes, limits, abort };
        pools.adopt_sizes();
        Ok(pools)
    }

    /// The pool of this name.
    pub(super) fn pool(&self, name: &str) -> Result<&Arc<Pool>, ExecuteError> {
        self.pools.get(name).ok_or_else(|| ExecuteError::NoSuchPool(name.to_owned()))
    }

    /// Copies a set of packages to where the sandboxes of the pool `name` are made, so that the first request with it does not have
    /// to wait for that. Dropping the future stops waiting; an unfinished copy is of no use, and is removed with the rest at
    /// the end of the server.
    ///
    /// # Errors
    ///
    /// When there is no such pool, its image is not there, or the engine can't take the set.
    pub async fn provide_packages(&self, name: &str, set: &PackageSet) -> Result<(), ExecuteError> {
        let pool = self.pool(name)?;
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

    /// Removes the set of packages with this hash from where sandboxes are made. No sandbox may use it anymore: none does when
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

    /// Advice for an operator with more requests than the engine makes sandboxes for, in a sentence.
    pub fn advice_when_busy(&self) -> Option<&'static str> {
        self.shared.engine.advice_when_busy()
    }

    /// Adds the names of the pools that a caller can use meanwhile, if the image of the requested one is still being fetched.
    pub(super) fn with_ready(&self, mut error: CheckoutError) -> CheckoutError {
        if let CheckoutError::ImageComing { ready, .. } = &mut error {
            let is_ready = |(_, pool): &(&String, &Arc<Pool>)| pool.has_image();
            *ready = self.pools.iter().filter(is_ready).map(|(name, _)| name.clone()).collect();
        }
        error
    }

    /// Lets the sizes of these pools follow their calls, as they are configured, and those of no others.
    pub(super) fn adopt_sizes(&self) {
        let of_name = |name: &str| {
            let size = self.sizes.get(name).map_or(Size::Fixed(0), |size| size.size);
            (size, self.pools.get(name).map(Arc::downgrade).unwrap_or_default())
        };
        let memory = self.limits.memory.map(ByteSize::as_bytes);
        lock(&self.shared.sizing).adopt(self.limits.refills, memory, of_name);
        self.shared.called.notify_one();
    }

    /// The calls of the pool `name` so far, if there is one.
    pub fn seen(&self, name: &str) -> Option<Seen> {
        let pool = self.pools.get(name)?;
        lock(&self.shared.sizing).seen(pool.place).cloned()
    }

    /// The pools' state, by name.
    pub fn status(&self) -> BTreeMap<&str, PoolStatus> {
        self.pools.iter().map(|(name, pool)| (name.as_str(), pool.status())).collect()
    }

    /// Counts of each pool since the start, by its name. Those of former configurations are among them.
    pub fn counts(&self) -> impl Iterator<Item = (&str, &PoolCounts)> {
        self.counts.iter().map(|(name, counts)| (name.as_str(), &**counts))
    }

    /// Counts of one pool, if there was one of this name.
    pub fn counts_of(&self, name: &str) -> Option<&PoolCounts> {
        self.counts.get(name).map(|counts| &**counts)
    }

    /// Counts a cell or command of a session that was not run, unless the session or the cell itself was the reason.
    pub fn count_failed_cell(&self, name: &str, error: &SessionError) {
        let Some(failure) = Failure::of_cell(error) else { return };
        self.count_failure(name, failure, error.to_string());
    }

    /// Counts a request that was not run, for a reason outside of the pools.
    pub fn count_failure(&self, name: &str, failure: Failure, message: String) {
        if let Some(counts) = self.counts_of(name) {
            counts.failures[failure as usize].add(1);
        }
        self.shared.counts.failed(name, failure, message);
    }

    /// Counts of all pools together since the start.
    pub fn shared_counts(&self) -> &SharedCounts {
        &self.shared.counts
    }

    /// Number of used sandboxes that were removed since the start.
    pub fn removed(&self) -> u64 {
        self.shared.reaper.removed()
    }

    /// Number of templates that the engine has ready, if it has templates.
    pub fn templates(&self) -> Option<usize> {
        self.shared.engine.templates()
    }

    /// Memory of the sandboxes that wait in each pool, and of the templates that they share, if the engine knows.
    pub async fn memory(&self) -> BTreeMap<&str, WaitingMemory> {
        let mut found = BTreeMap::new();
        for (name, pool) in &self.pools {
            if let Some(memory) = pool.measure().await {
                found.insert(name.as_str(), memory);
            }
        }
        found
    }

    /// Runs a task along with those of the pools. It must end by itself when the pools are closed.
    pub fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks.spawn(task);
    }

    /// Limits that the engine can't enforce here.
    pub fn unenforced(&self) -> Vec<LimitKind> {
        self.shared.engine.unenforced()
    }

    /// Numbers of requests that run and that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.admission.running(), self.admission.waiting())
    }

    /// The part of the slots that requests take, those that wait among them: 1 if all are taken and none waits.
    pub fn load_ratio(&self) -> f64 {
        let (running, waiting) = self.load();
        (running + waiting) as f64 / self.limits.admission.running.max(1) as f64
    }

    /// Ends all requests that run. For a server that stops, and whose time to drain is not over.
    pub fn end_running(&self) {
        self.abort.cancel();
    }

    /// The clients with requests that run or wait, and the number of each.
    pub fn clients(&self) -> Vec<(Client, usize, usize)> {
        self.admission.clients()
    }

    /// Number of used sandboxes that are not removed yet.
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
    /// When the engine could not remove everything; the next start sweeps it.
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
