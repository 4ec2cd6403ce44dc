//! Pools of sandboxes that are made in advance, kept paused, and used once.
//!
//! This example starts one pool with the embedded engine and runs one program:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use async_trait::async_trait;
//! use isolator_pool::engine::embedded::{EmbeddedEngine, Settings, launcher};
//! use isolator_pool::engine::images::{Former, ImageBuilder, ImageProvider, PullPolicy};
//! use isolator_pool::engine::instance::Instance;
//! use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, Resources};
//! use isolator_pool::engine::{EngineError, Image, Progress, RootAccess, SandboxSpec};
//! use isolator_pool::pool::PoolSize;
//! use isolator_pool::pool::admission::{AdmissionLimits, Client};
//! use isolator_pool::pool::pools::{PoolSpec, Pools, PoolsLimits};
//! use isolator_pool::pool::sizing::Size;
//! use isolator_pool::run::RunRequest;
//! use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
//! use isolator_pool::OutputLimits;
//!
//! /// All images are pulled.
//! struct NoBuilder;
//!
//! #[async_trait]
//! impl ImageBuilder for NoBuilder {
//!     fn makes(&self, _: &str) -> bool {
//!         false
//!     }
//!     async fn build(&self, name: &str, _: Former, _: Progress<'_>) -> Result<(), EngineError> {
//!         Err(EngineError::NoSuchImage(name.to_owned()))
//!     }
//! }
//!
//! async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//!     let instance = Arc::new(Instance::register(Path::new("/var/lib/example/instances"))?);
//!     let settings = Settings {
//!         program: std::env::current_exe()?,
//!         runner: std::fs::read("/usr/lib/example/isolator-runner")?.leak(),
//!         template: &[],
//!         images: "/var/lib/example/images".into(),
//!         packages: "/var/lib/example/packages/sets".into(),
//!         state: "/var/lib/example/state".into(),
//!         favordynmods: true,
//!     };
//!     let engine = Arc::new(EmbeddedEngine::new(settings, &instance));
//!     let images = ImageProvider::new(engine.clone(), Arc::new(NoBuilder), PullPolicy::Missing);
//!     let resources = Resources { memory: ByteSize::mib(256), cpu: CpuShare::millis(1000) };
//!     let sandbox = SandboxSpec {
//!         image: Image { name: "python:3.13-slim".to_owned(), ..Image::default() },
//!         resources,
//!         limits: FixedLimits {
//!             pids: 64,
//!             open_files: 1024,
//!             workspace: ByteSize::mib(64),
//!             tmp: ByteSize::mib(64),
//!             inodes: 8192,
//!             shm: ByteSize::mib(16),
//!         },
//!         workdir: "/workspace".to_owned(),
//!         user: (65534, 65534),
//!         network: "none".to_owned(),
//!         cap_drop: vec!["ALL".to_owned()],
//!         root: RootAccess::ReadOnly,
//!         runtime: None,
//!         preload: None,
//!         packages: None,
//!         allow_unlimited: false,
//!     };
//!     let size = PoolSize { size: Size::Fixed(4), hot: 1, max_age: Duration::from_secs(3600) };
//!     let wait = Duration::from_secs(10);
//!     let limits = PoolsLimits {
//!         admission: AdmissionLimits { running: 4, running_of_one: 4, queue: 16, wait },
//!         refills: 2,
//!         memory: None,
//!     };
//!     let specs = BTreeMap::from([("python".to_owned(), PoolSpec { sandbox, size })]);
//!     let pools = Pools::start(engine, images, instance, limits, specs)?;
//!
//!     let mut files = WorkspaceBuilder::new(WorkspaceLimits { files: 10, total: 1 << 20 });
//!     files.add("main.py", b"print('hello')".to_vec())?;
//!     let argv = ["python", "main.py"].map(str::to_owned).to_vec();
//!     let output = OutputLimits { head: 64 << 10, tail: 64 << 10, kill: 16 << 20 };
//!     let request =
//!         RunRequest::new(argv, files.build(), Duration::from_secs(10), resources, output);
//!     let (outcome, receipt) = pools.execute("python", &Client::Host, &request).await?;
//!     println!("{:?} after a {} start", outcome.status, receipt.start.as_str());
//!     println!("{}", String::from_utf8_lossy(&outcome.stdout.to_bytes()));
//!     pools.close(Duration::from_secs(5)).await?;
//!     Ok(())
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The engine starts this program again, as the process that makes sandboxes.
//!     let arguments: Vec<String> = std::env::args().skip(1).collect();
//!     if let Some(code) = launcher::run(&arguments, || {}) {
//!         std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
//!     }
//!     tokio::runtime::Runtime::new()?.block_on(serve())
//! }
//! ```
//!
//! # Theory of operation
//!
//! Making a sandbox takes hundreds of milliseconds; thawing one takes a few. So the pool makes sandboxes
//! before the requests come, up to the point where a program could start, and keeps them frozen. Each
//! sandbox serves one request, or one session of one client, and is then removed.
//!
//! At each step of its life a sandbox has one owner:
//!
//! | step | owner | if the process dies at this step |
//! |---|---|---|
//! | named, then created and started | the task that makes it | the next start finds it by its labels and removes it |
//! | armed: its runner waits for a job | the same task | the same |
//! | idle: paused, or thawed if it is one of the hot ones | the pool's `IdleSet` | the same |
//! | checked out, thawed, running a job | the request | the same |
//! | checked out for a session, thawed or frozen | the task of the session | the same |
//! | dropped | the `Reaper`, until the engine has removed it | the same |
//!
//! An interpreter that the engine has forked into a sandbox belongs to the sandbox from its first step there. Its template belongs
//! to the engine, and ends with the launcher that made it.
//!
//! Owning a sandbox means holding a `Lease` on its name, which is taken before the engine makes
//! it. Dropping the lease, for whatever reason, gives the name to the reaper. So no panic and no canceled
//! request leaks a sandbox. What a killed server leaves behind is [swept](sandbox::sweep) at the next start:
//! its labels name an [`Instance`](engine::instance::Instance), and that instance is proven dead.
//!
//! A session's task runs its cells one after the other. It freezes the sandbox a moment after each answer and
//! thaws it for the next call. It ends, and drops the sandbox, when its [`Session`](pool::session::Session) is
//! dropped or closed, when the server stops, or when the stream to the runner ends.
//!
//! Cold, warm and hot starts are the same steps; they differ in how many of them are done in advance.
//!
//! # Layout
//!
//! - [`engine`]: the trait [`Engine`](engine::Engine) and its two implementations, [`engine::docker`] and
//!   [`engine::embedded`]. [`engine::images`] gets images onto an engine, [`engine::store`] keeps those of the
//!   embedded one. [`engine::limits`] says what a sandbox may use, [`engine::preload`] which interpreter waits
//!   in it, [`engine::instance`] to whom it belongs.
//! - [`sandbox`]: one sandbox, with its state in its type. `Connection` talks to its runner, `Reaper` removes
//!   it, [`sandbox::sweep`] removes those of dead instances, and `ActivityGate` delays background work while
//!   a request has just begun.
//! - [`pool`]: [`Pools`](pool::pools::Pools) takes requests, [`pool::admission`] decides whose turn it is. Each
//!   `Pool` has a `Template` of its sandboxes, an `IdleSet` of those that wait, a refill task that keeps the
//!   set full, and a `Backoff` for when the engine fails. [`pool::sizing`] is the rule for sizes that follow the calls. [`pool::session`] keeps a sandbox for a client's cells.
//! - [`counts`]: counters since the start; [`pool::counts`] has those of pools.
//! - [`run`]: one [`RunRequest`](run::RunRequest) in one sandbox. [`run::workspace`] checks and packs its
//!   files, [`run::output`] receives what the program prints, [`run::outcome`] says how it ended.
//! - [`folders`]: trees of folders of any depth are listed and removed.

pub mod counts;
pub mod engine;
#[cfg(not(fuzzing))]
pub mod error_chain;
pub mod folders;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod lock;
pub mod packages;
pub mod pool;
pub mod quote;
pub mod run;
pub mod sandbox;

pub use isolator_runner::wire::{OutputLimits, WantedFiles};
pub use sandbox::SandboxError;
pub use sandbox::connection::ConnectionError;
