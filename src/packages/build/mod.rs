//! Building sets: with the tools of each ecosystem, outside of requests.
//!
//! A set is resolved into a lock, installed from the lock into a private folder, adapted to the image, compiled
//! in a sandbox, listed with its hashes, and moved into the store by one rename. No code of a package runs meanwhile.

mod bytecode;
mod environment;
mod error;
mod installed;
mod npm;
mod processes;
mod sandboxes;
mod secrets;
mod tool;
mod uv;
mod watch;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use isolator_pool::OutputLimits;
use isolator_pool::engine::Progress;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::lock::lock;
use isolator_pool::quote::quoted;
use isolator_pool::run::outcome::Status;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

pub(crate) use error::BuildError;
pub(crate) use sandboxes::Sandboxes;

use self::error::TargetError;
use self::installed::OtherPython;
use self::tool::{Deadline, Tools};
use self::watch::{Bounds, Watch};
use crate::config::{Config, Language};
use crate::packages::blocking;
use crate::packages::lock::pins::keep_files;
use crate::packages::lock::{
    CONSTRAINTS, Lock, LockError, PACKAGE, PACKAGE_LOCK, REQUIREMENTS, file_names, node, python,
    read_bounded,
};
use crate::packages::store::tree::{self, TreeEntry, TreeError};
use crate::packages::store::{Alone, AtPath as _, Building, Store, StoreError, StoredSet};
use crate::packages::target::{NODE_PROGRAM, PYTHON_PROGRAM, System, Target};
use crate::requirement::Recipe;

/// The limit for the answer of an interpreter.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a set is looked for that another process builds.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Limits of its answer.
const ASK_OUTPUT: OutputLimits = OutputLimits { head: 1 << 16, tail: 1024, kill: 1 << 17 };

/// Builds sets.
pub(crate) struct Builder {
    config: Arc<Config>,
    store: Store,
    sandboxes: Arc<dyn Sandboxes>,
    /// The answers of interpreters, by language and image.
    targets: Mutex<HashMap<(String, String), Target>>,
}

impl Builder {
    /// A builder for the sets of a configuration.
    pub(crate) fn new(config: Arc<Config>, store: Store, sandboxes: Arc<dyn Sandboxes>) -> Self {
        Self { config, store, sandboxes, targets: Mutex::default() }
    }

    /// The target of the sets of a language. A sandbox is asked once for each image.
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
        let target = self.ask(language).await;
        let target = target.map_err(|why| BuildError::Target {
            language: language.name.clone(),
            why: Box::new(why),
        })?;
        // Only if it was this image that has answered.
        if let Some(key) =
            key.filter(|key| known(self.sandboxes.image(&language.name)).as_ref() == Some(key))
        {
            lock(&self.targets).insert(key, target.clone());
        }
        Ok(target)
    }

    /// Asks the interpreter of a language for its description.
    async fn ask(&self, language: &Language) -> Result<Target, TargetError> {
        let interpreter = language.kernel.ok_or(TargetError::NoInterpreter)?;
        let program = match interpreter {
            Interpreter::Python => PYTHON_PROGRAM,
            Interpreter::Node => NODE_PROGRAM,
        };
        let limits = WorkspaceLimits { files: 1, total: program.len() as u64 };
        let mut workspace = WorkspaceBuilder::new(limits);
        let name = workspace.add(&language.default_file, program.into())?;
        let workspace = workspace.build();
        let request = sandboxes::request(language, &name, workspace, ASK_TIMEOUT, ASK_OUTPUT);
        let outcome = sandboxes::run(&*self.sandboxes, &language.name, request).await?;
        if outcome.status != Status::Success {
            let said = String::from_utf8_lossy(&outcome.stderr.to_bytes()).into_owned();
            let last = said.lines().last().unwrap_or_default().to_owned();
            return Err(TargetError::Failed { status: outcome.status.as_str(), last });
        }
        Ok(Target::read(interpreter, &outcome.stdout.to_bytes())?)
    }

    /// Finds the versions that fulfil the requirements, in the index as it is now. Dropping the future ends the tools.
    pub(crate) async fn lock(
        &self,
        language: &Language,
        recipe: &Recipe,
        say: Progress<'_>,
    ) -> Result<Lock, BuildError> {
        self.lock_from(language, recipe, None, say).await
    }

    /// The same, but versions of a former lock are kept where they fulfil the requirements.
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
        let [wanted, locked] = file_names(recipe.interpreter);
        let input = match recipe.interpreter {
            Interpreter::Python => python::wanted(recipe),
            Interpreter::Node => {
                node::wanted(recipe, &target.name).map_err(|error| unsolvable(&target, &error))?
            }
        };
        write(&building.folder().join(wanted), &input)?;
        if let Some(former) = former {
            write(&building.folder().join(locked), former.locked())?;
        }
        let cache = cache(&building, recipe.interpreter);
        let tools =
            Tools { config: &self.config, target: &target, watch: &watch, cache: &cache, deadline };
        let resolved = match recipe.interpreter {
            Interpreter::Python => {
                uv::check_folder(&self.config)?;
                let pins = python::constraints(&recipe.pins);
                if !pins.is_empty() {
                    write(&building.folder().join(CONSTRAINTS), &pins)?;
                }
                tools.uv_compile(!pins.is_empty(), say).await
            }
            Interpreter::Node => tools.npm_resolve(say).await,
        };
        resolved.map_err(|error| error.with_pins(&recipe.pins))?;
        let path = building.folder().join(locked);
        let resolved = read_bounded(&path).at(&path)?;
        let resolved = match recipe.interpreter {
            Interpreter::Python => python::with_target(&target.name, &resolved),
            Interpreter::Node => resolved,
        };
        // If a lock has something that is not allowed, a package has requested it.
        let lock =
            Lock::of(recipe.interpreter, [input, resolved]).map_err(BuildError::RefusedLock)?;
        let lock = match recipe.pins.locks.is_empty() {
            true => lock,
            false => keep_files(lock, recipe.interpreter, &recipe.pins)
                .map_err(|error| BuildError::Mismatch(error.to_string()))?,
        };
        say(&format!("resolved {} packages", lock.packages.len()));
        Ok(lock)
    }

    /// Builds a set, unless the store has it. Dropping the future ends the tools and leaves nothing behind.
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
        let _alone = self.alone(&lock.hash, say).await?;
        // Another process may have built it meanwhile.
        if let Some(found) = self.store.find(&lock.hash) {
            return Ok(found);
        }
        let deadline = Deadline::after(self.config.packages.build_timeout);
        let asked = deadline.bound("asking the image for its interpreter", self.target(language));
        let target = asked.await??;
        if lock.target != target.name {
            let message = format!(
                "the lock was made for {}, and the image of {} has {}: write it again with `isolator packages lock`",
                quoted(&lock.target),
                language.name,
                target.name
            );
            return Err(LockError::new(message).into());
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
            Interpreter::Node => node::installed(lock.locked(), &files)?,
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
        let published = try_blocking(move || {
            building.publish(&set, &entries)?;
            // A set that another process has built in the meantime is the same.
            let found = store.find(&set.hash);
            found.ok_or(StoreError::NoSuchSet(set.hash))
        });
        let set = published.await?;
        tracing::info!(
            requirements = set.requirements.join(" "),
            hash = set.hash,
            packages = set.packages.len(),
            bytes = set.bytes,
            "a set of packages was built"
        );
        Ok(set)
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
        let cache = cache(building, recipe.interpreter);
        let tools = Tools { config: &self.config, target, watch, cache: &cache, deadline };
        match &target.system {
            System::Python { minor, executable, .. } => {
                uv::check_folder(&self.config)?;
                let (_, pinned) = python::parse(lock.locked())?;
                // Only the parsed packages are written.
                write(&building.folder().join(REQUIREMENTS), &python::text(&pinned))?;
                if !pinned.is_empty() {
                    tools.uv_install(&building.files(), say).await?;
                }
                // Before files are moved: no link may lead outside.
                self.inspect(&building.files()).await?;
                let (files, minor, executable) =
                    (building.files(), minor.clone(), executable.clone());
                let version = target.version.clone();
                let other = try_blocking(move || {
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
                node::parse(lock.locked())?;
                let files = building.files();
                let package = node::wanted(recipe, &target.name)?;
                write(&files.join(PACKAGE), &package)?;
                write(&files.join(PACKAGE_LOCK), lock.locked())?;
                tools.npm_install(&files, say).await
            }
        }
    }

    /// Lists the installed files, and sets their permissions.
    async fn inspect(&self, files: &Path) -> Result<Vec<TreeEntry>, BuildError> {
        let most = self.config.packages.max_store.as_bytes();
        let files = files.to_owned();
        try_blocking(move || {
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
        })
        .await
    }

    /// Waits for the right to build a set. If another process has it for longer than a build can take, this one builds it as well:
    /// the first that is ready counts.
    async fn alone(&self, hash: &str, say: Progress<'_>) -> Result<Option<Alone>, BuildError> {
        let until = Instant::now().checked_add(self.config.packages.build_timeout);
        loop {
            let (store, own) = (self.store.clone(), hash.to_owned());
            let alone = try_blocking(move || store.alone(&own)).await?;
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if alone.is_some() || is_late {
                return Ok(alone);
            }
            say("waiting for another process that builds this set");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn begin(&self) -> Result<Building, BuildError> {
        let (store, most) = (self.store.clone(), self.config.packages.max_cache());
        try_blocking(move || store.begin(most)).await
    }

    async fn watch<'b>(&self, building: &'b Building) -> Watch<'b> {
        let bounds = Bounds::of(&self.config.packages);
        let group = self.sandboxes.tool_group(building.name(), &bounds).await;
        Watch::new(building, bounds, group)
    }
}

/// The folder for the downloads of an interpreter's tool.
fn cache(building: &Building, interpreter: Interpreter) -> PathBuf {
    building.cache(match interpreter {
        Interpreter::Python => "uv",
        Interpreter::Node => "npm",
    })
}

/// The index of an interpreter's packages, as a set remembers it.
pub(crate) fn index_of(config: &Config, interpreter: Interpreter) -> String {
    config.packages.index(interpreter).map(ToString::to_string).unwrap_or_default()
}

fn unsolvable(target: &Target, error: &LockError) -> BuildError {
    BuildError::Unsolvable { target: target.name.clone(), said: error.to_string() }
}

async fn try_blocking<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, BuildError>
where
    T: Send + 'static,
    E: Into<BuildError> + Send + 'static,
{
    blocking::blocking(work).await?.map_err(Into::into)
}

fn write(path: &Path, text: &str) -> Result<(), StoreError> {
    fs::write(path, text).at(path)
}
