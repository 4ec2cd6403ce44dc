//! Building sets: with the tools of each ecosystem, outside of requests.
//!
//! A set is resolved into a lock, installed from the lock into a folder that nobody sees, made fit for sandboxes, compiled
//! in a sandbox, listed with its hashes, and moved into the store by one rename. Nothing of a package runs meanwhile.

mod bytecode;
mod environment;
mod error;
mod installed;
mod npm;
mod processes;
mod secrets;
mod tool;
mod uv;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use isolator_pool::OutputLimits;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::engine::{Progress, ToolGroup};
use isolator_pool::lock::lock;
use isolator_pool::quote::quoted;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{Outcome, Status};
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

pub(crate) use error::BuildError;
pub(crate) use watch::Bounds;

use self::installed::OtherPython;
use self::npm::Npm;
use self::tool::Deadline;
use self::uv::Uv;
use self::watch::Watch;
use crate::config::{Config, Language};
use crate::packages::lock::pins::keep_files;
use crate::packages::lock::{
    CONSTRAINTS, Lock, LockError, PACKAGE, PACKAGE_LOCK, REQUIREMENTS, WANTED, node, python,
    read_bounded,
};
use crate::packages::requirement::Recipe;
use crate::packages::store::tree::{self, Entry, TreeError};
use crate::packages::store::{Building, Store, StoreError, StoredSet};
use crate::packages::target::{NODE_PROGRAM, PYTHON_PROGRAM, System, Target};

/// How long an interpreter can take to say what it is.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

/// What it may say.
const ASK_OUTPUT: OutputLimits = OutputLimits { head: 1 << 16, tail: 1024, kill: 1 << 17 };

/// How often a sandbox is asked for, and how long after one that was refused.
const TRIES: u32 = 4;
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Runs programs of ours in sandboxes.
#[async_trait]
pub(crate) trait Sandboxes: Send + Sync {
    /// Runs a program in a fresh sandbox of the language.
    ///
    /// # Errors
    ///
    /// Why there is no outcome.
    async fn run(&self, language: &str, request: RunRequest) -> Result<Outcome, String>;

    /// A group with limits for a tool, if the engine has such groups.
    async fn tool_group(&self, name: String, bounds: &Bounds) -> Option<Box<dyn ToolGroup>>;

    /// The digest of the language's image, if it is known.
    fn image(&self, language: &str) -> Option<String>;
}

/// Builds sets.
pub(crate) struct Builder {
    config: Arc<Config>,
    store: Store,
    sandboxes: Arc<dyn Sandboxes>,
    /// What interpreters have said, by language and image.
    targets: Mutex<HashMap<(String, String), Target>>,
}

impl Builder {
    /// Puts the parts together.
    pub(crate) fn new(config: Arc<Config>, store: Store, sandboxes: Arc<dyn Sandboxes>) -> Self {
        Self { config, store, sandboxes, targets: Mutex::default() }
    }

    /// For what the sets of a language are built. Asked in a sandbox once for each image.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no set can be built for it.
    pub(crate) async fn target(&self, language: &Language) -> Result<Target, BuildError> {
        let known = |image: Option<String>| image.map(|image| (language.name.clone(), image));
        let key = known(self.sandboxes.image(&language.name));
        if let Some(target) = key.as_ref().and_then(|key| lock(&self.targets).get(key).cloned()) {
            return Ok(target);
        }
        let failed = |why: String| BuildError::Target { language: language.name.clone(), why };
        let interpreter = language
            .kernel
            .ok_or_else(|| failed("it has no interpreter that can use packages".to_owned()))?;
        let program = match interpreter {
            Interpreter::Python => PYTHON_PROGRAM,
            Interpreter::Node => NODE_PROGRAM,
        };
        let limits = WorkspaceLimits { files: 1, total: program.len() as u64 };
        let mut workspace = WorkspaceBuilder::new(limits);
        let name = workspace.add(&language.default_file, program.into());
        let name = name.map_err(|error| failed(error.to_string()))?;
        let request =
            bytecode::program(language, &name, workspace.build(), ASK_TIMEOUT, ASK_OUTPUT);
        let outcome = run_in_sandbox(&*self.sandboxes, &language.name, request).await;
        let outcome = outcome.map_err(failed)?;
        if outcome.status != Status::Success {
            let said = String::from_utf8_lossy(&outcome.stderr.to_bytes()).into_owned();
            let last = said.lines().last().unwrap_or_default();
            let how = outcome.status.as_str();
            return Err(failed(format!(
                "asking its interpreter ended with {how} {}",
                quoted(last)
            )));
        }
        let target = Target::read(interpreter, &outcome.stdout.to_bytes()).map_err(failed)?;
        // Only if it was this image that has answered.
        if let Some(key) =
            key.filter(|key| known(self.sandboxes.image(&language.name)).as_ref() == Some(key))
        {
            lock(&self.targets).insert(key, target.clone());
        }
        Ok(target)
    }

    /// Finds the versions that fulfil the requirements, in the index as it is now. Dropping the future ends the tools.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub(crate) async fn lock(
        &self,
        language: &Language,
        recipe: &Recipe,
        say: Progress<'_>,
    ) -> Result<Lock, BuildError> {
        self.lock_from(language, recipe, None, say).await
    }

    /// The same, but versions of a former lock are kept where they fulfil the requirements.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub(crate) async fn lock_from(
        &self,
        language: &Language,
        recipe: &Recipe,
        former: Option<&Lock>,
        say: Progress<'_>,
    ) -> Result<Lock, BuildError> {
        let deadline = Deadline::after(self.config.packages.build_timeout);
        let asked = deadline.bound("asking the image for its interpreter", self.target(language));
        let target = asked.await??;
        let building = self.begin().await?;
        let watch = self.watch(&building).await;
        say(&format!("resolving {} requirements", recipe.requirements.len()));
        let (wanted, locked) = match recipe.interpreter {
            Interpreter::Python => (WANTED, REQUIREMENTS),
            Interpreter::Node => (PACKAGE, PACKAGE_LOCK),
        };
        let input = match recipe.interpreter {
            Interpreter::Python => python::wanted(recipe),
            Interpreter::Node => node::wanted(recipe, &target.name)
                .map_err(|said| BuildError::Unsolvable { target: target.name.clone(), said })?,
        };
        write(&building.folder().join(wanted), &input)?;
        if let Some(former) = former {
            write(&building.folder().join(locked), &former.files[locked])?;
        }
        let cache = building.cache(match recipe.interpreter {
            Interpreter::Python => "uv",
            Interpreter::Node => "npm",
        });
        let resolved = match recipe.interpreter {
            Interpreter::Python => {
                uv::check_folder(&self.config)?;
                let pins = python::constraints(&recipe.pins);
                if !pins.is_empty() {
                    write(&building.folder().join(CONSTRAINTS), &pins)?;
                }
                let uv = self.uv(&target, &watch, deadline, &cache);
                uv.compile(!pins.is_empty(), say).await
            }
            Interpreter::Node => self.npm(&target, &watch, deadline, &cache).resolve(say).await,
        };
        resolved.map_err(|error| error.beside(&recipe.pins))?;
        let path = building.folder().join(locked);
        let resolved = read_bounded(&path).map_err(|error| StoreError::io(&path, error))?;
        let resolved = match recipe.interpreter {
            Interpreter::Python => python::with_target(&target.name, &resolved),
            Interpreter::Node => resolved,
        };
        let files = BTreeMap::from([(wanted, input), (locked, resolved)]);
        // What no lock may have comes from a package that wants it.
        let lock = Lock::of(recipe.interpreter, files)
            .map_err(|error: LockError| BuildError::Refused(error.to_string()))?;
        let lock = match recipe.pins.locks.is_empty() {
            true => lock,
            false => {
                keep_files(lock, recipe.interpreter, &recipe.pins).map_err(BuildError::Mismatch)?
            }
        };
        say(&format!("resolved {} packages", lock.packages.len()));
        Ok(lock)
    }

    /// Builds a set, unless the store has it. Dropping the future ends the tools and leaves nothing behind.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub(crate) async fn build(
        &self,
        language: &Language,
        recipe: &Recipe,
        lock: &Lock,
        say: Progress<'_>,
    ) -> Result<StoredSet, BuildError> {
        if let Some(found) = self.store.find(&lock.hash) {
            return Ok(found);
        }
        let deadline = Deadline::after(self.config.packages.build_timeout);
        let asked = deadline.bound("asking the image for its interpreter", self.target(language));
        let target = asked.await??;
        if lock.target != target.name {
            return Err(BuildError::Lock(format!(
                "the lock was made for {}, and the image of {} has {}: write it again with `isolator packages lock`",
                quoted(&lock.target),
                language.name,
                target.name
            )));
        }
        let building = self.begin().await?;
        let watch = self.watch(&building).await;
        say(&format!("installing {} packages", lock.packages.len()));
        let installed = self.install(recipe, lock, &target, &watch, deadline, say).await;
        installed?;
        let files = building.files();
        let entries = self.inspect(&files).await?;
        let modules = match &target.system {
            System::Python { minor, tag, .. } => {
                let compiled =
                    bytecode::compile(&*self.sandboxes, language, &files, &entries, tag, say);
                deadline.bound("compiling", watch.during(compiled)).await???;
                installed::python_modules(&entries, minor)
            }
            System::Node { .. } => installed::node_modules(&entries),
        };
        say("writing the list of files");
        let entries = self.inspect(&files).await?;
        // npm leaves out what is for other systems, or only wanted by such.
        let packages = match recipe.interpreter {
            Interpreter::Python => lock.packages.clone(),
            Interpreter::Node => node::installed(&lock.files[PACKAGE_LOCK], &files)
                .map_err(|error| BuildError::Lock(error.to_string()))?,
        };
        let set = StoredSet {
            hash: lock.hash.clone(),
            interpreter: recipe.interpreter,
            target: target.name,
            index: index_of(&self.config, recipe.interpreter),
            requirements: recipe.texts(),
            locks: recipe.pins.locks.clone(),
            packages,
            modules,
            bytes: tree::bytes(&entries),
            built: SystemTime::now(),
        };
        let store = self.store.clone();
        let published = blocking(move || {
            building.publish(&set, &entries)?;
            // What another process has built in the meantime is as good.
            let found = store.find(&set.hash);
            found.ok_or(StoreError::NoSuchSet(set.hash))
        });
        published.await
    }

    async fn install(
        &self,
        recipe: &Recipe,
        lock: &Lock,
        target: &Target,
        watch: &Watch<'_>,
        deadline: Deadline,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        let building = watch.building;
        let unfit = |error: LockError| BuildError::Lock(error.to_string());
        match &target.system {
            System::Python { minor, executable, .. } => {
                uv::check_folder(&self.config)?;
                let (_, pinned) = python::parse(&lock.files[REQUIREMENTS]).map_err(unfit)?;
                // Written anew from what was understood.
                write(&building.folder().join(REQUIREMENTS), &python::text(&pinned))?;
                let cache = building.cache("uv");
                let uv = self.uv(target, watch, deadline, &cache);
                if !pinned.is_empty() {
                    uv.install(&building.files(), say).await?;
                }
                // What is moved next may lead nowhere else.
                self.inspect(&building.files()).await?;
                let (files, minor, executable) =
                    (building.files(), minor.clone(), executable.clone());
                let version = target.version.clone();
                let other = blocking(move || {
                    installed::python(&files, &minor, &executable)?;
                    installed::for_other_python(&files, &minor, &version)
                });
                match other.await? {
                    None => Ok(()),
                    Some(OtherPython { package, wants }) => {
                        let has = target.version.clone();
                        Err(BuildError::OtherPython { package, wants, has })
                    }
                }
            }
            System::Node { .. } => {
                node::parse(&lock.files[PACKAGE_LOCK]).map_err(unfit)?;
                let files = building.files();
                let package = node::wanted(recipe, &target.name).map_err(BuildError::Lock)?;
                write(&files.join(PACKAGE), &package)?;
                write(&files.join(PACKAGE_LOCK), &lock.files[PACKAGE_LOCK])?;
                let cache = building.cache("npm");
                self.npm(target, watch, deadline, &cache).install(&files, say).await
            }
        }
    }

    /// Looks at what was installed, and sets its permissions.
    async fn inspect(&self, files: &Path) -> Result<Vec<Entry>, BuildError> {
        let most = self.config.packages.max_store.as_bytes();
        let files = files.to_owned();
        let inspected = tokio::task::spawn_blocking(move || {
            let entries = tree::entries(&files)?;
            let bytes = tree::bytes(&entries);
            if bytes > most {
                return Err(TreeError::Refused(format!(
                    "the set has {} MiB, and the store may have {} (packages.maxStoreMB)",
                    bytes.div_ceil(1 << 20),
                    most >> 20
                )));
            }
            tree::set_permissions(&files, &entries)?;
            Ok(entries)
        });
        match inspected.await {
            Ok(Ok(entries)) => Ok(entries),
            Ok(Err(TreeError::Refused(why))) => Err(BuildError::Refused(why)),
            Ok(Err(TreeError::Store(error))) => Err(error.into()),
            Err(error) => Err(BuildError::Store(error.to_string())),
        }
    }

    async fn begin(&self) -> Result<Building, BuildError> {
        let (store, most) = (self.store.clone(), self.config.packages.max_cache());
        blocking(move || store.begin(most)).await
    }

    async fn watch<'b>(&self, building: &'b Building) -> Watch<'b> {
        let bounds = Bounds::of(&self.config.packages);
        let group = self.sandboxes.tool_group(building.name(), &bounds).await;
        Watch::new(building, bounds, group)
    }

    fn uv<'u>(
        &'u self,
        target: &'u Target,
        watch: &'u Watch<'u>,
        deadline: Deadline,
        cache: &'u Path,
    ) -> Uv<'u> {
        Uv { config: &self.config, target, watch, cache, deadline }
    }

    fn npm<'n>(
        &'n self,
        target: &'n Target,
        watch: &'n Watch<'n>,
        deadline: Deadline,
        cache: &'n Path,
    ) -> Npm<'n> {
        Npm { config: &self.config, target, watch, cache, deadline }
    }
}

/// The index of an interpreter's packages, as a set remembers it.
pub(crate) fn index_of(config: &Config, interpreter: Interpreter) -> String {
    config.packages.index(interpreter).map(ToString::to_string).unwrap_or_default()
}

/// Runs a program of ours. A server that is busy is asked again.
async fn run_in_sandbox(
    sandboxes: &dyn Sandboxes,
    language: &str,
    request: RunRequest,
) -> Result<Outcome, String> {
    let mut tries = 1;
    loop {
        match sandboxes.run(language, request.clone()).await {
            Err(error) if tries < TRIES => {
                tracing::info!(
                    language,
                    error,
                    "a sandbox for building packages was not to be had; trying again"
                );
                tokio::time::sleep(TRY_AGAIN).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

/// Does what blocks where that is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, BuildError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(BuildError::from),
        Err(error) => Err(BuildError::Store(error.to_string())),
    }
}

fn write(path: &Path, text: &str) -> Result<(), StoreError> {
    fs::write(path, text).map_err(|error| StoreError::io(path, error))
}
