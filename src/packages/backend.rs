//! The backend of the sets of packages: the builder, the store, and the sandboxes. Tests script another one.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use isolator_pool::engine::{EngineError, Progress};
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::pools::Pools;

use crate::config::{Config, Language};
use crate::packages::build::{BuildError, Builder, Sandboxes};
use crate::packages::lock::{Lock, LockError};
use crate::packages::store::{Store, StoreError, StoredSet};
use crate::packages::target::Target;
use crate::requirement::Recipe;

/// Builds sets, keeps them, and brings them to sandboxes. Methods that are not `async` read files, so they are called on threads
/// that may block, except for [`image`](Self::image).
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    /// Digest of the image of a language's sandboxes, once it is known.
    fn image(&self, language: &str) -> Option<String>;

    /// The interpreter in the image of a language, with its version, its platform and the packages that it has.
    async fn target(&self, language: &Language) -> Result<Target, BuildError>;

    /// The lock that the operator keeps for a set of the configuration, if there is one.
    fn kept_lock(&self, set: &str, recipe: &Recipe) -> Result<Option<Lock>, LockError>;

    /// Resolves. Dropping the future ends the tool.
    async fn lock(
        &self,
        language: &Language,
        recipe: &Recipe,
        say: Progress<'_>,
    ) -> Result<Lock, BuildError>;

    /// Installs. Dropping the future ends the tool and leaves nothing.
    async fn build(
        &self,
        language: &Language,
        recipe: &Recipe,
        lock: &Lock,
        say: Progress<'_>,
    ) -> Result<StoredSet, BuildError>;

    /// Brings a set to the engine, for the sandboxes of a language.
    async fn provide(&self, language: &str, set: &PackageSet) -> Result<(), ExecuteError>;

    /// Takes the set with this hash from the engine. No sandbox has it anymore.
    async fn withdraw(&self, hash: &str) -> Result<(), EngineError>;

    /// A set in the store.
    fn find(&self, hash: &str) -> Option<StoredSet>;

    /// Whether a set is in the store.
    fn is_there(&self, hash: &str) -> bool;

    /// All sets in the store, with their last uses.
    fn all(&self) -> Vec<(StoredSet, SystemTime)>;

    /// Takes a set, which is not removed as long as it is held.
    fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError>;

    /// Removes a set that is not in use.
    fn remove(&self, hash: &str) -> Result<bool, StoreError>;

    /// Removes a set that was changed, and the caches, whose files are also those of sets.
    fn remove_changed(&self, hash: &str) -> Result<(), StoreError>;

    /// Notes that a set was used.
    fn used(&self, hash: &str);

    /// Bytes of all sets.
    fn bytes(&self) -> u64;
}

/// The tools, the store and the sandboxes of this machine.
pub(super) struct LocalBackend {
    config: Arc<Config>,
    pools: Arc<Pools>,
    store: Store,
    builder: Builder,
}

impl LocalBackend {
    pub(super) fn new(config: Arc<Config>, pools: Arc<Pools>, store: Store) -> Self {
        let sandboxes = Arc::clone(&pools) as Arc<dyn Sandboxes>;
        let builder = Builder::new(Arc::clone(&config), store.clone(), sandboxes);
        Self { config, pools, store, builder }
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn image(&self, language: &str) -> Option<String> {
        self.pools.image(language)
    }

    async fn target(&self, language: &Language) -> Result<Target, BuildError> {
        self.builder.target(language).await
    }

    fn kept_lock(&self, set: &str, recipe: &Recipe) -> Result<Option<Lock>, LockError> {
        let folder = self.config.packages.lock_folder.join(set);
        match Lock::read(recipe.interpreter, &folder)? {
            Some(lock) if !lock.fits(recipe) => Err(LockError::new(format!(
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
        say: Progress<'_>,
    ) -> Result<Lock, BuildError> {
        self.builder.lock(language, recipe, say).await
    }

    async fn build(
        &self,
        language: &Language,
        recipe: &Recipe,
        lock: &Lock,
        say: Progress<'_>,
    ) -> Result<StoredSet, BuildError> {
        self.builder.build(language, recipe, lock, say).await
    }

    async fn provide(&self, language: &str, set: &PackageSet) -> Result<(), ExecuteError> {
        self.pools.provide_packages(language, set).await
    }

    async fn withdraw(&self, hash: &str) -> Result<(), EngineError> {
        self.pools.withdraw_packages(hash).await
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

    fn remove_changed(&self, hash: &str) -> Result<(), StoreError> {
        self.store.remove_changed(hash)
    }

    fn used(&self, hash: &str) {
        self.store.used(hash);
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}
