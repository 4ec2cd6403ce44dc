//! The parts that every command needs: the engine, the images, this process's identity, and the pools.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use isolator_pool::engine::docker::{ConnectError, DockerEngine, EngineAddress};
use isolator_pool::engine::embedded::{self, EmbeddedEngine};
use isolator_pool::engine::images::{ImageProvider, ImageStore};
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::process_limits;
use isolator_pool::engine::{Call, Engine, EngineError, Unsupported, bounded};
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::pools::{PoolSpec, Pools};
use isolator_pool::pool::sizing::Size;
use isolator_pool::sandbox::sweep::{self, Swept};

use crate::config::{Config, EngineKind, StoreConfig};
use crate::images::{BuildEngine, LanguageImages};
use crate::packages::store::{Store, StoreKey};

/// The static program that waits in every sandbox.
pub static RUNNER: &[u8] = include_bytes!(env!("ISOLATOR_RUNNER"));

/// The shared library that a template of Python loads.
static TEMPLATE: &[u8] = include_bytes!(env!("ISOLATOR_TEMPLATE"));

/// How many sandboxes are made ahead of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFill {
    /// As many as the configuration says.
    AsConfigured,
    /// This number for each language, to check that it works.
    Few(usize),
    /// None, for a single request.
    Nothing,
}

/// The engine and the images, which every command needs.
pub struct App {
    /// This process's identity.
    pub instance: Arc<Instance>,
    /// Which kind of engine makes the sandboxes; never [`EngineKind::Auto`].
    pub kind: EngineKind,
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// The images on it, as languages need them.
    pub images: ImageProvider,
    /// The images on it, as an operator sees them.
    pub store: Arc<dyn ImageStore>,
}

impl App {
    /// Finds the engine and registers this process.
    ///
    /// # Errors
    ///
    /// When no engine's address is known, or there is no directory for this user's state.
    pub async fn new(config: &Config) -> anyhow::Result<Self> {
        Self::on(config.engine.kind, config, env::current_exe()?).await
    }

    /// The same with this kind of engine, also in a process that is not the `isolator` program: the embedded engine starts
    /// `program`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub async fn on(
        kind: EngineKind,
        config: &Config,
        program: impl Into<PathBuf>,
    ) -> anyhow::Result<Self> {
        let open_files = config.languages.values().map(|it| it.sandbox.limits.open_files);
        for problem in process_limits::problems(open_files.max().unwrap_or_default()) {
            tracing::warn!("{problem}");
        }
        let directory = state_directory()
            .context("no directory for this user's state is known: set XDG_STATE_HOME to one")?;
        Self::in_state(&directory, kind, config, program).await
    }

    /// The same with another directory for this process's state.
    pub(crate) async fn in_state(
        directory: &Path,
        kind: EngineKind,
        config: &Config,
        program: impl Into<PathBuf>,
    ) -> anyhow::Result<Self> {
        let instance = Instance::register(directory).with_context(|| {
            let directory = directory.display();
            format!("{directory} can't be written: set XDG_STATE_HOME to another directory")
        })?;
        let (kind, engine): (_, Arc<dyn BuildEngine>) =
            match docker(kind, config, &instance).await? {
                Some(docker) => (EngineKind::Docker, Arc::new(docker)),
                None => {
                    let data = data_directory()
                        .context("no directory for images is known: set XDG_DATA_HOME to one")?;
                    let settings = embedded::Settings {
                        program: program.into(),
                        runner: RUNNER,
                        template: TEMPLATE,
                        packages: package_folder(&config.packages.store)?.join("sets"),
                        images: data,
                        state: directory.join("embedded"),
                        favordynmods: config.engine.favordynmods,
                    };
                    (EngineKind::Embedded, Arc::new(EmbeddedEngine::new(settings, &instance)))
                }
            };
        let builder =
            Arc::new(LanguageImages::new(Arc::clone(&engine), config.images.base.clone()));
        let store: Arc<dyn ImageStore> = Arc::clone(&engine) as _;
        let engine: Arc<dyn Engine> = engine;
        let images = ImageProvider::new(Arc::clone(&engine), builder, config.images.policy);
        Ok(Self { instance: Arc::new(instance), kind, engine, images, store })
    }

    /// Removes what dead instances left behind, and returns how much that was. A failure is only logged, because it costs
    /// nothing but space.
    pub async fn sweep(&self) -> Swept {
        match sweep::sweep(&*self.engine, &self.instance).await {
            Ok(swept) => {
                if swept != Swept::default() {
                    tracing::info!("removed what dead instances left behind: {swept}");
                }
                swept
            }
            Err(error) => {
                tracing::warn!(%error, "what dead instances left behind could not be removed");
                Swept::default()
            }
        }
    }

    /// Ends and removes what this process has begun on the engine without pools and given up, such as the build of an image.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn give_up(&self) -> Result<(), EngineError> {
        self.images.settle().await;
        sweep::sweep_own(&*self.engine, &self.instance).await?;
        let settled = async {
            self.store.settle().await;
            Ok(())
        };
        bounded(Call::RemoveImage, settled).await
    }

    /// Starts the pools of a configuration.
    ///
    /// # Errors
    ///
    /// When the engine can't do what is configured.
    pub fn start_pools(&self, config: &Config, fill: PoolFill) -> Result<Pools, Unsupported> {
        self.start_some(config, pool_specs(config, fill))
    }

    /// Starts these pools of a configuration.
    pub(crate) fn start_some(
        &self,
        config: &Config,
        specs: BTreeMap<String, PoolSpec>,
    ) -> Result<Pools, Unsupported> {
        Pools::start(
            Arc::clone(&self.engine),
            self.images.clone(),
            Arc::clone(&self.instance),
            config.pools_limits(),
            specs,
        )
    }
}

/// The pools of a configuration.
pub(crate) fn pool_specs(config: &Config, fill: PoolFill) -> BTreeMap<String, PoolSpec> {
    config
        .languages
        .values()
        .map(|language| {
            let sandbox = language.sandbox.clone();
            let fixed = |size| PoolSize { size: Size::Fixed(size), hot: 0, ..language.pool };
            let size = match fill {
                PoolFill::AsConfigured => language.pool,
                PoolFill::Few(few) => fixed(few),
                PoolFill::Nothing => fixed(0),
            };
            (language.name.clone(), PoolSpec { sandbox, size })
        })
        .collect()
}

/// How long Docker has to answer. A host waits meanwhile.
const DOCKER_TIMEOUT: Duration = Duration::from_secs(2);

/// Docker, if it makes the sandboxes: if the operator chose it or named its address, or else if it answers.
async fn docker(
    kind: EngineKind,
    config: &Config,
    instance: &Instance,
) -> anyhow::Result<Option<DockerEngine>> {
    let at = |address| DockerEngine::new(address, instance, RUNNER);
    match kind {
        EngineKind::Embedded => return Ok(None),
        EngineKind::Docker => return Ok(Some(at(engine_address(config)?))),
        EngineKind::Auto => {}
    }
    match EngineAddress::named(config.engine.host.as_deref()) {
        Ok(Some(address)) => return Ok(Some(at(address))),
        Ok(None) => {}
        Err(error) if config.engine.host.is_some() => return Err(error.into()),
        // The variable may be meant for other programs.
        Err(error) => tracing::warn!("{error}; looking for another engine"),
    }
    let (addresses, unusable) = EngineAddress::usual();
    if let Some(error) = unusable {
        tracing::warn!("{error}; looking for another engine");
    }
    for address in addresses {
        let docker = at(address);
        match tokio::time::timeout(DOCKER_TIMEOUT, docker.check()).await {
            Ok(Ok(_)) => return Ok(Some(docker)),
            Ok(Err(error)) => tracing::info!(%error, "Docker is not available"),
            Err(_) => tracing::warn!(address = %docker.address(), "Docker does not answer"),
        }
    }
    tracing::info!("no Docker engine was found; using the embedded engine");
    Ok(None)
}

/// Where the configured engine is, if it is Docker.
///
/// # Errors
///
/// See [`ConnectError`].
pub fn engine_address(config: &Config) -> Result<EngineAddress, ConnectError> {
    match EngineAddress::find(config.engine.host.as_deref()) {
        // An engine that is started later most likely has this address.
        Err(ConnectError::NotFound(_)) => Ok(EngineAddress::default()),
        found => found,
    }
}

/// Where the instances of one user register, so that the next one can remove what dead ones left behind.
fn state_directory() -> Option<PathBuf> {
    Some(user_state()?.join("instances"))
}

/// The directory of what commands remember for this user.
pub(crate) fn user_state() -> Option<PathBuf> {
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .or_else(|| absolute("XDG_RUNTIME_DIR"))?;
    Some(base.join("isolator"))
}

/// The directory of what exists while programs of this user run, such as sockets.
pub(crate) fn user_runtime() -> Option<PathBuf> {
    match absolute("XDG_RUNTIME_DIR") {
        Some(base) => Some(base.join("isolator")),
        None => Some(user_state()?.join("run")),
    }
}

/// The directory of the embedded engine's images.
pub(crate) fn data_directory() -> Option<PathBuf> {
    let base =
        absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
    Some(base.join("isolator"))
}

/// The sets of packages of this user.
///
/// # Errors
///
/// When there is no folder for them, or it can't be written.
pub(crate) fn package_store(config: &StoreConfig) -> anyhow::Result<Store> {
    let folder = package_folder(config)?;
    let key = config.key_file.as_deref().map(StoreKey::read).transpose()?;
    Ok(Store::open(&folder, key)?)
}

/// The folder of the store of sets of packages.
fn package_folder(config: &StoreConfig) -> anyhow::Result<PathBuf> {
    if let Some(folder) = &config.folder {
        return Ok(folder.clone());
    }
    let data =
        data_directory().context("no directory for packages is known: set XDG_DATA_HOME to one")?;
    Ok(data.join("packages"))
}

fn absolute(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
