//! The workshop of a server whose configuration has no packages. Whatever asks it for a set is refused before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use isolator_pool::engine::Progress as Say;
use isolator_pool::packages::PackageSet;

use crate::config::Language;
use crate::packages::build::BuildError;
use crate::packages::lock::Lock;
use crate::packages::requirement::{Machine, Recipe};
use crate::packages::store::{StoreError, StoredSet};
use crate::packages::workshop::Workshop;

/// It has nothing, and builds nothing.
pub(super) struct Nowhere;

fn none() -> BuildError {
    BuildError::Lock("the configuration has no packages".to_owned())
}

#[async_trait]
impl Workshop for Nowhere {
    fn image(&self, _: &str) -> Option<String> {
        None
    }

    async fn target(&self, _: &Language) -> Result<String, BuildError> {
        Err(none())
    }

    async fn version(&self, _: &Language) -> Result<String, BuildError> {
        Err(none())
    }

    async fn machine(&self, _: &Language) -> Result<Machine, BuildError> {
        Err(none())
    }

    async fn in_image(&self, _: &Language) -> Result<BTreeMap<String, String>, BuildError> {
        Err(none())
    }

    fn kept_lock(&self, _: &str, _: &Recipe) -> Result<Option<Lock>, BuildError> {
        Ok(None)
    }

    async fn lock(&self, _: &Language, _: &Recipe, _: Say<'_>) -> Result<Lock, BuildError> {
        Err(none())
    }

    async fn build(
        &self,
        _: &Language,
        _: &Recipe,
        _: &Lock,
        _: Say<'_>,
    ) -> Result<StoredSet, BuildError> {
        Err(none())
    }

    async fn provide(&self, _: &str, _: &PackageSet) -> Result<(), String> {
        Ok(())
    }

    async fn withdraw(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn find(&self, _: &str) -> Option<StoredSet> {
        None
    }

    fn is_there(&self, _: &str) -> bool {
        false
    }

    fn all(&self) -> Vec<(StoredSet, SystemTime)> {
        Vec::new()
    }

    fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError> {
        Err(StoreError::NoSuchSet(set.hash.clone()))
    }

    fn remove(&self, _: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn used(&self, _: &str) {}

    fn bytes(&self) -> u64 {
        0
    }
}
