//! What the server's sets need from elsewhere: the builder, the store, and the sandboxes. Tests play its part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use isolator_pool::engine::{Progress as Say, ToolGroup};
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Outcome;

use crate::config::{Config, Language};
use crate::packages::build::{Bounds, BuildError, Builder, Sandboxes};
use crate::packages::lock::Lock;
use crate::packages::requirement::{Machine, Recipe};
use crate::packages::store::{Store, StoreError, StoredSet};

/// Builds sets, keeps them, and brings them to sandboxes. What is not `async` reads files: it is called on threads that
/// may wait, except for [`image`](Self::image).
#[async_trait]
pub(super) trait Workshop: Send + Sync + 'static {
    /// Digest of the image of a language's sandboxes, once it is known.
    fn image(&self, language: &str) -> Option<String>;

    /// For what the packages of a language have to be: the interpreter in its image, with version and platform.
    async fn target(&self, language: &Language) -> Result<String, BuildError>;

    /// The version of that interpreter, with three numbers.
    async fn version(&self, language: &Language) -> Result<String, BuildError>;

    /// What markers are compared with, for an interpreter of Python.
    async fn machine(&self, language: &Language) -> Result<Machine, BuildError>;

    /// The packages that the image has for that interpreter, by their normalised names, with their versions.
    async fn in_image(&self, language: &Language) -> Result<BTreeMap<String, String>, BuildError>;

    /// The lock that the operator keeps for a set of the configuration, if there is one.
    fn kept_lock(&self, set: &str, recipe: &Recipe) -> Result<Option<Lock>, BuildError>;

    /// Resolves. Dropping the future ends the tool.
    async fn lock(
        &self,
        language: &Language,
        recipe: &Recipe,
        say: Say<'_>,
    ) -> Result<Lock, BuildError>;

    /// Installs. Dropping the future ends the tool and leaves nothing.
    async fn build(
        &self,
        language: &Language,
        recipe: &Recipe,
        lock: &Lock,
        say: Say<'_>,
    ) -> Result<StoredSet, BuildError>;

    /// Brings a set to where a language's sandboxes are.
    async fn provide(&self, language: &str, set: &PackageSet) -> Result<(), String>;

    /// Takes the set with this hash away again. No sandbox has it anymore.
    async fn withdraw(&self, hash: &str) -> Result<(), String>;

    /// A set in the store.
    fn find(&self, hash: &str) -> Option<StoredSet>;

    /// Whether a set is in the store.
    fn is_there(&self, hash: &str) -> bool;

    /// All sets in the store, with their last uses.
    fn all(&self) -> Vec<(StoredSet, SystemTime)>;

    /// Takes a set that nobody removes meanwhile.
    fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError>;

    /// Removes a set that nobody uses.
    fn remove(&self, hash: &str) -> Result<bool, StoreError>;

    /// Notes that a set was used.
    fn used(&self, hash: &str);

    /// Bytes of all sets.
    fn bytes(&self) -> u64;
}

/// The real one.
pub(super) struct Shop {
    config: Arc<Config>,
    pools: Arc<Pools>,
    store: Store,
    builder: Builder,
}

impl Shop {
    pub(super) fn new(config: Arc<Config>, pools: Arc<Pools>, store: Store) -> Self {
        let sandboxes = Arc::clone(&pools) as Arc<dyn Sandboxes>;
        let builder = Builder::new(Arc::clone(&config), store.clone(), sandboxes);
        Self { config, pools, store, builder }
    }
}

#[async_trait]
impl Sandboxes for Pools {
    async fn run(&self, language: &str, request: RunRequest) -> Result<Outcome, String> {
        let executed = self.execute(language, &Client::Server, &request).await;
        executed.map(|(outcome, _)| outcome).map_err(|error| error.to_string())
    }

    async fn tool_group(&self, name: String, bounds: &Bounds) -> Option<Box<dyn ToolGroup>> {
        Self::tool_group(self, name, bounds.memory, bounds.tasks).await
    }

    fn image(&self, language: &str) -> Option<String> {
        Self::image(self, language)
    }
}

#[async_trait]
impl Workshop for Shop {
    fn image(&self, language: &str) -> Option<String> {
        self.pools.image(language)
    }

    async fn target(&self, language: &Language) -> Result<String, BuildError> {
        self.builder.target(language).await.map(|target| target.name)
    }

    async fn version(&self, language: &Language) -> Result<String, BuildError> {
        self.builder.target(language).await.map(|target| target.version)
    }

    async fn machine(&self, language: &Language) -> Result<Machine, BuildError> {
        self.builder.target(language).await.map(|target| target.machine())
    }

    async fn in_image(&self, language: &Language) -> Result<BTreeMap<String, String>, BuildError> {
        self.builder.target(language).await.map(|target| target.packages)
    }

    fn kept_lock(&self, set: &str, recipe: &Recipe) -> Result<Option<Lock>, BuildError> {
        let folder = self.config.packages.lock_folder.join(set);
        let lock = Lock::read(recipe.interpreter, &folder);
        let lock = lock.map_err(|error| BuildError::Lock(error.to_string()))?;
        match lock {
            Some(lock) if !lock.fits(recipe) => Err(BuildError::Lock(format!(
                "the lock in {} was made for other requirements than the configuration has now; `isolator packages lock \
                 {set}` renews it",
                folder.display()
            ))),
            lock => Ok(lock),
        }
    }

    async fn lock(
        &self,
        language: &Language,
        recipe: &Recipe,
        say: Say<'_>,
    ) -> Result<Lock, BuildError> {
        self.builder.lock(language, recipe, say).await
    }

    async fn build(
        &self,
        language: &Language,
        recipe: &Recipe,
        lock: &Lock,
        say: Say<'_>,
    ) -> Result<StoredSet, BuildError> {
        self.builder.build(language, recipe, lock, say).await
    }

    async fn provide(&self, language: &str, set: &PackageSet) -> Result<(), String> {
        self.pools.provide_packages(language, set).await.map_err(|error| error.to_string())
    }

    async fn withdraw(&self, hash: &str) -> Result<(), String> {
        self.pools.withdraw_packages(hash).await.map_err(|error| error.to_string())
    }

    fn find(&self, hash: &str) -> Option<StoredSet> {
        self.store.find(hash)
    }

    fn is_there(&self, hash: &str) -> bool {
        self.store.is_there(hash)
    }

    fn all(&self) -> Vec<(StoredSet, SystemTime)> {
        self.store.all()
    }

    fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError> {
        self.store.hold(set)
    }

    fn remove(&self, hash: &str) -> Result<bool, StoreError> {
        self.store.remove(hash)
    }

    fn used(&self, hash: &str) {
        self.store.used(hash);
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}
