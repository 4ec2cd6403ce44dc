//! Sets of packages in sandboxes, which only their own programs find. The sets are made by hand.

mod agents;
mod apart;
mod life;
mod node;
mod python;
mod sessions;
mod templates;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use isolator::app::RUNNER;
use isolator::config::{Config, Language};
use isolator_pool::engine::docker::{DockerEngine, EngineAddress};
use isolator_pool::engine::embedded::{EmbeddedEngine, Settings};
use isolator_pool::engine::images::{Former, ImageBuilder, ImageProvider, PullPolicy};
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::engine::{Engine, EngineError, Labels, Progress};
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{ExecuteError, PoolSpec, Pools, Receipt};
use isolator_pool::pool::sizing::Size;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Outcome;
use isolator_pool::run::workspace::WorkspaceBuilder;
use serde_json::json;
use tempfile::TempDir;

use crate::common::engine::Kind;
use crate::common::eventually;

/// The modules that a template of Python loads.
static TEMPLATE: &[u8] = include_bytes!(env!("ISOLATOR_TEMPLATE"));

/// Where modules of Python are in a set.
const MODULES: &str = "lib/python3.13/site-packages";

/// A server's pools of one language, whose sandboxes can be given sets.
struct World {
    pools: Arc<Pools>,
    language: Arc<Language>,
    config: Config,
    /// The labels of everything that the engine has for these pools.
    labels: Labels,
    directory: TempDir,
    next: AtomicU64,
}

/// All images are there.
struct NoBuilder;

#[async_trait]
impl ImageBuilder for NoBuilder {
    fn makes(&self, _: &str) -> bool {
        false
    }

    async fn build(&self, name: &str, _: Former, _: Progress<'_>) -> Result<(), EngineError> {
        Err(EngineError::NoSuchImage(name.to_owned()))
    }
}

impl World {
    async fn python() -> Self {
        Self::start(Kind::chosen(), "python").await
    }

    async fn node() -> Self {
        Self::start(Kind::chosen(), "javascript").await
    }

    /// With paused sandboxes only, which is what most requests meet.
    async fn start(kind: Kind, language: &str) -> Self {
        Self::with_pool(kind, language, 2).await
    }

    /// With this number of waiting sandboxes.
    async fn with_pool(kind: Kind, language: &str, size: usize) -> Self {
        let settings = json!({
            "defaultCpus": 1,
            "engine": { "kind": kind.name() },
            "requests": { "maxRunning": 4 },
        });
        let config =
            Config::parse(&settings.to_string(), None, Path::new("")).expect("a valid one");
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        // Launchers have users of their own.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let instance = Instance::register(&directory.path().join("instances")).expect("writable");
        let labels = instance.labels().clone();
        let sets = directory.path().join("sets");
        fs::create_dir(&sets).expect("writable");
        let engine: Arc<dyn Engine> = match kind {
            Kind::Docker => {
                let address = EngineAddress::named(None).expect("a valid address");
                let address = address.unwrap_or_else(|| EngineAddress::usual().0.remove(0));
                Arc::new(DockerEngine::new(address, &instance, RUNNER))
            }
            Kind::Embedded => Arc::new(EmbeddedEngine::new(
                Settings {
                    program: env!("CARGO_BIN_EXE_isolator").into(),
                    runner: RUNNER,
                    template: TEMPLATE,
                    images: users_store(),
                    packages: sets,
                    state: directory.path().join("embedded"),
                    favordynmods: false,
                },
                &instance,
            )),
        };
        let images =
            ImageProvider::new(Arc::clone(&engine), Arc::new(NoBuilder), PullPolicy::Never);
        let language = Arc::clone(&config.languages[language]);
        let mut sandbox = language.sandbox.clone();
        sandbox.packages = language.kernel;
        let size = PoolSize { size: Size::Fixed(size), hot: 0, ..language.pool };
        let specs = BTreeMap::from([(language.name.clone(), PoolSpec { sandbox, size })]);
        let pools = Pools::start(engine, images, Arc::new(instance), config.pools_limits(), specs);
        let pools = Arc::new(pools.expect("it can be done"));
        let next = AtomicU64::new(1);
        let world = Self { pools, language, config, labels, directory, next };
        world.until_full().await;
        world
    }

    async fn until_full(&self) {
        eventually("sandboxes that wait", async || {
            let status = self.pools.status();
            status.values().all(|pool| pool.paused == pool.size && pool.making == 0)
        })
        .await;
    }

    fn interpreter(&self) -> Interpreter {
        self.language.kernel.expect("the language has one")
    }

    /// Makes a set of these files.
    fn set(&self, files: &[(&str, &str)], modules: &[&str]) -> Arc<PackageSet> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let hash = format!("{number:064x}");
        let folder = self.directory.path().join("sets").join(&hash).join("files");
        fs::create_dir_all(&folder).expect("writable");
        for (path, content) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("it is below")).expect("writable");
            fs::write(&path, content).expect("writable");
            let mode = if content.starts_with("#!") { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        }
        let held = File::create(folder.with_file_name("lock")).expect("writable");
        let modules = modules.iter().map(|&module| module.to_owned()).collect();
        Arc::new(PackageSet { hash, folder, interpreter: self.interpreter(), modules, held })
    }

    /// A set of Python with one module.
    fn module(&self, name: &str, code: &str) -> Arc<PackageSet> {
        self.set(&[(&format!("{MODULES}/{name}.py"), code)], &[name])
    }

    fn request(&self, files: &[(&str, &str)], set: Option<&Arc<PackageSet>>) -> RunRequest {
        let limits = &self.config.limits;
        let mut workspace = WorkspaceBuilder::new(limits.files());
        for (path, content) in files {
            workspace.add(path, content.as_bytes().to_vec()).expect("a valid path");
        }
        let names: Vec<_> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        let resources = self.language.sandbox.resources;
        let argv = self.language.argv(&names[0], &names[..1], resources.memory);
        let mut request = RunRequest::new(
            argv,
            workspace.build(),
            limits.default_timeout,
            resources,
            limits.output(),
        );
        request.env = self.language.env.clone();
        request.packages = set.cloned();
        request
    }

    /// Runs a program, whose first file is the one that is started.
    async fn try_run(
        &self,
        files: &[(&str, &str)],
        set: Option<&Arc<PackageSet>>,
    ) -> Result<(Outcome, Receipt), ExecuteError> {
        let request = self.request(files, set);
        self.pools.execute(&self.language.name, &Client::Host, &request).await
    }

    /// Runs a program that waits for nothing, and returns what it printed. Both streams are in there.
    async fn run(&self, files: &[(&str, &str)], set: Option<&Arc<PackageSet>>) -> String {
        let (outcome, _) = self.try_run(files, set).await.expect("an outcome");
        printed(&outcome)
    }

    /// The same for a program of one file.
    async fn run_code(&self, code: &str, set: Option<&Arc<PackageSet>>) -> String {
        self.run(&[(&self.language.default_file, code)], set).await
    }

    async fn stop(self) {
        self.pools.close(std::time::Duration::from_secs(1)).await.expect("everything is removed");
    }
}

fn printed(outcome: &Outcome) -> String {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    text(outcome.stdout.to_bytes()) + &text(outcome.stderr.to_bytes())
}

/// Where the images are that the tests run in.
fn users_store() -> PathBuf {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".local/share");
    data.unwrap_or_else(home).join("isolator")
}
