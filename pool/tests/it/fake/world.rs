//! The world of a test: an engine, the pools on it, and requests to run.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::images::{ImageProvider, PullPolicy};
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, Resources};
use isolator_pool::engine::preload::{Interpreter, Preload};
use isolator_pool::engine::{Image, RootAccess, SandboxSpec};
use isolator_pool::pool::admission::{AdmissionLimits, Client};
use isolator_pool::pool::pools::{ExecuteError, PoolSpec, Pools, PoolsLimits, Receipt};
use isolator_pool::pool::sizing::Size;
use isolator_pool::pool::{PoolSize, PoolStatus, Start};
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Outcome;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::*;

/// The state in which a test starts.
pub(crate) struct Setup {
    /// Name and image of each pool.
    pub(crate) pools: Vec<(&'static str, &'static str)>,
    pub(crate) size: usize,
    /// Instead of that size.
    pub(crate) sizes: Option<Size>,
    /// Memory of what waits, in MiB.
    pub(crate) memory: Option<u64>,
    pub(crate) hot: usize,
    pub(crate) max_age: Duration,
    pub(crate) running: usize,
    pub(crate) queue: usize,
    pub(crate) wait: Duration,
    pub(crate) refills: usize,
    pub(crate) policy: PullPolicy,
    pub(crate) preload: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            pools: vec![(POOL, IMAGE)],
            size: 2,
            sizes: None,
            memory: None,
            hot: 0,
            max_age: secs(24 * 60 * 60),
            running: 4,
            queue: 8,
            wait: secs(60),
            refills: 2,
            policy: PullPolicy::Missing,
            preload: false,
        }
    }
}

/// An engine and the pools on it.
pub(crate) struct World {
    pub(crate) engine: FakeEngine,
    pub(crate) pools: Arc<Pools>,
    pub(crate) tasks: TaskTracker,
    pub(super) _directory: tempfile::TempDir,
}

impl Deref for World {
    type Target = Pools;

    fn deref(&self) -> &Pools {
        &self.pools
    }
}

impl World {
    /// Starts the pools on a healthy engine.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_with(setup, |_| {})
    }

    /// Starts the pools on an engine that was prepared.
    pub(crate) fn start_with(setup: Setup, prepare: impl FnOnce(&FakeEngine)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let owner = Arc::new(Instance::register(directory.path()).unwrap());
        let engine = FakeEngine::new(owner.labels().clone());
        prepare(&engine);
        let images =
            ImageProvider::new(Arc::new(engine.clone()), Arc::new(engine.clone()), setup.policy);
        let size = PoolSize {
            size: setup.sizes.unwrap_or(Size::Fixed(setup.size)),
            hot: setup.hot,
            max_age: setup.max_age,
        };
        let specs = setup
            .pools
            .iter()
            .map(|(name, image)| {
                let preload = setup.preload.then(preload);
                let sandbox = SandboxSpec { preload, ..sandbox(image) };
                ((*name).to_owned(), PoolSpec { sandbox, size })
            })
            .collect();
        let limits = PoolsLimits {
            admission: AdmissionLimits {
                running: setup.running,
                running_of_one: setup.running,
                queue: setup.queue,
                wait: setup.wait,
            },
            refills: setup.refills,
            memory: setup.memory.map(ByteSize::mib),
        };
        let pools = Pools::start(Arc::new(engine.clone()), images, owner, limits, specs).unwrap();
        let pools = Arc::new(pools);
        Self { engine, pools, tasks: TaskTracker::new(), _directory: directory }
    }

    /// Starts the pools and waits until they are full.
    pub(crate) async fn full(setup: Setup) -> Self {
        let world = Self::start(setup);
        world.fill().await;
        world
    }

    /// Runs in the first pool.
    pub(crate) async fn run(&self, request: &RunRequest) -> Result<Done, ExecuteError> {
        self.pools.execute(POOL, &Client::Host, request).await
    }

    /// Runs in the first pool, as a task of its own.
    pub(crate) fn spawn(
        &self,
        request: RunRequest,
    ) -> tokio::task::JoinHandle<Result<Done, ExecuteError>> {
        let pools = Arc::clone(&self.pools);
        self.tasks.spawn(async move { pools.execute(POOL, &Client::Host, &request).await })
    }

    /// State of the only pool.
    pub(crate) fn pool(&self) -> PoolStatus {
        self.pools.status().into_values().next().unwrap()
    }

    pub(crate) fn is_full(&self) -> bool {
        let statuses = self.pools.status();
        statuses.values().all(|pool| pool.hot + pool.paused == pool.size && pool.making == 0)
    }

    /// Waits until the pools are full and nothing is left over.
    pub(crate) async fn fill(&self) {
        until("the pools are full", || {
            let size: usize = self.pools.status().values().map(|pool| pool.size).sum();
            self.is_full() && self.engine.live() == size
        })
        .await;
    }

    /// Starts counted so far: hot, warm, queued, cold.
    pub(crate) fn starts(&self) -> [u64; 4] {
        self.pool().starts
    }

    /// Closes the pools and checks the engine's books.
    pub(crate) async fn end(self) {
        self.pools.close(secs(60)).await.expect("everything was removed");
        self.assert_clean().await;
    }

    /// A summary of all that is held and under way, for a test that fails.
    pub(crate) fn describe(&self) -> String {
        let books = self.engine.books();
        let left: Vec<_> = books.sandboxes.iter().filter(|(_, record)| record.exists()).collect();
        let (load, pool) = (self.pools.load(), self.pool());
        format!("{load:?}, {pool:?}, calls under way {:?}, left {left:#?}", books.in_flight)
    }

    /// Waits a little for tasks that are just about to end, then checks as `assert_clean` does.
    pub(crate) async fn assert_clean_soon(&self) {
        tokio::time::sleep(ms(20)).await;
        until("nothing runs", || self.pools.load() == (0, 0) && self.pool().making == 0).await;
        self.assert_clean().await;
    }

    /// Checks that nothing is held, under way or left.
    pub(crate) async fn assert_clean(&self) {
        settle().await;
        assert_eq!(self.pools.load(), (0, 0), "requests that run and wait");
        for (name, pool) in self.pools.status() {
            let there = (pool.hot, pool.paused, pool.making);
            assert_eq!(there, (0, 0, 0), "what {name} has");
        }
        self.engine.assert_idle();
        self.engine.assert_clean();
    }
}

/// The result of a request.
pub(crate) type Done = (Outcome, Receipt);

/// Waits for what is bound to happen, up to ten virtual minutes.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(ms(6)).await;
    }
    panic!("it never came to pass that {what}");
}

/// Lets everything happen that waits for nothing but for an answer to leave.
pub(crate) async fn settle() {
    tokio::time::sleep(ms(10)).await;
}

/// Drops a request after every number of milliseconds, each time in another world, until it has time to end. The next
/// request must find everything as if it had never been.
pub(crate) async fn drop_at_each_moment(
    world: impl AsyncFn() -> World,
    request: &RunRequest,
    assert_unharmed: impl AsyncFn(World),
) {
    for moment in 0.. {
        let world = world().await;
        let done = timeout(ms(moment), world.run(request)).await;
        let is_done = done.is_ok();
        done.map(started).ok();
        assert_unharmed(world).await;
        if is_done {
            assert!(moment > 5, "the request takes its time");
            break;
        }
    }
}

/// Closes the pools after every number of milliseconds of a request, each time in another world. It is served or turned away,
/// but answered, and nothing comes after the end.
pub(crate) async fn close_at_each_moment(world: impl AsyncFn(u64) -> World, request: &RunRequest) {
    for moment in 0..50 {
        let world = world(moment).await;
        let request = world.spawn(request.clone());
        tokio::time::sleep(ms(moment)).await;
        world.close(secs(1)).await.unwrap();
        let _ = timeout(ms(10), request).await.expect("an answer").unwrap();
        tokio::time::sleep(secs(120)).await;
        world.assert_clean().await;
    }
}

/// Polls a future at most `polls` times; its output, if it came to that. With `woken`, returns
/// only when the future would be polled once more.
pub(crate) async fn poll_times<F: Future>(
    future: F,
    polls: usize,
    woken: bool,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == polls && !woken => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The limits of a sandbox, unless a request wants others.
pub(crate) const RESOURCES: Resources =
    Resources { memory: ByteSize::mib(256), cpu: CpuShare::millis(1000) };

/// A request whose runner does what `argv` says.
pub(crate) fn request(argv: &[&str]) -> RunRequest {
    let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
    let workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 8, total: 1 << 24 }).build();
    let output = OutputLimits { head: 1 << 16, tail: 1 << 16, kill: 1 << 24 };
    RunRequest {
        stdin: b"hello".to_vec(),
        ..RunRequest::new(argv, workspace, secs(30), RESOURCES, output)
    }
}

/// A request that takes this many milliseconds and prints its standard input.
pub(crate) fn run_for(millis: u64) -> RunRequest {
    request(&["run", &millis.to_string()])
}

/// The same with a program that imports a module.
pub(crate) fn importing(module: &str, millis: u64) -> RunRequest {
    let mut workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 1, total: 1 << 20 });
    workspace.add("main.py", format!("import {module}").into()).unwrap();
    RunRequest { workspace: workspace.build(), ..run_for(millis) }
}

/// How a request that has to succeed started.
pub(crate) fn started(done: Result<Done, ExecuteError>) -> Start {
    let (outcome, receipt) = done.expect("an outcome");
    assert_eq!(outcome.stdout.head, b"hello");
    receipt.start
}

pub(crate) fn sandbox(image: &str) -> SandboxSpec {
    SandboxSpec {
        image: Image { name: image.to_owned(), ..Image::default() },
        resources: RESOURCES,
        limits: FixedLimits {
            pids: 64,
            open_files: 256,
            workspace: ByteSize::mib(16),
            tmp: ByteSize::mib(16),
            inodes: 1024,
            shm: ByteSize::mib(1),
        },
        workdir: "/workspace".to_owned(),
        user: (1000, 1000),
        network: "none".to_owned(),
        cap_drop: vec!["ALL".to_owned()],
        root: RootAccess::ReadOnly,
        runtime: None,
        preload: None,
        packages: Some(Interpreter::Python),
        allow_unlimited: false,
    }
}

fn preload() -> Preload {
    Preload {
        interpreter: Interpreter::Python,
        argv: vec!["run".to_owned()],
        env: BTreeMap::new(),
        modules: vec!["numpy".to_owned()],
        memory: ByteSize::mib(64),
        fork: true,
    }
}

/// Numbers that are random enough and the same for the same seed (xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}
