//! Taking a set that is there: it is not removed as long as it is held.

use std::error::Error;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use tokio::sync::RwLock;

use crate::config::Language;
use crate::packages::refusal::Refusal;
use crate::packages::shared::Shared;
use crate::packages::store::{StoreError, StoredSet, short};

/// Why a set that was there could not be taken.
pub(super) enum Lost {
    /// It is not there anymore.
    Gone,
    /// It can't be used.
    Refused(Refusal),
}

impl Shared {
    /// Takes a set, so that it is not removed, and brings it to the engine.
    pub(super) async fn take(
        &self,
        language: &Language,
        set: &StoredSet,
    ) -> Result<Arc<PackageSet>, Lost> {
        let gate = self.gate(&set.hash);
        let _staying = gate.read().await;
        let held = lock(&self.held).get(&set.hash).and_then(Weak::upgrade);
        let held = match held {
            Some(held) => held,
            None => self.hold(set).await?,
        };
        lock(&self.uses).insert(set.hash.clone(), SystemTime::now());
        // The engine does this at the first use, too, but a sandbox would wait for it.
        if !lock(&self.provided).contains(&set.hash) {
            let provided = self.backend.provide(&language.name, &held).await;
            provided.map_err(|error| Lost::Refused(unusable(set, error)))?;
            lock(&self.provided).insert(set.hash.clone());
        }
        Ok(held)
    }

    async fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, Lost> {
        let own = set.clone();
        let held = self.blocking(move |backend| {
            let held = backend.hold(&own);
            match &held {
                Ok(_) => backend.used(&own.hash),
                // Its files were changed. It is built again from its lock.
                Err(error @ StoreError::Changed { .. }) => {
                    tracing::error!(%error, "a set of packages is removed and built again");
                    if let Err(error) = backend.remove_changed(&own.hash) {
                        tracing::warn!(%error, hash = own.hash, "it can't be removed");
                    }
                }
                Err(_) => {}
            }
            held
        });
        match held.await.map_err(Lost::Refused)? {
            Ok(held) => {
                let mut all = lock(&self.held);
                all.retain(|_, set| set.strong_count() > 0);
                // Another request may have taken it meanwhile. There is one of each, by which its users are counted.
                if let Some(other) = all.get(&set.hash).and_then(Weak::upgrade) {
                    return Ok(other);
                }
                all.insert(set.hash.clone(), Arc::downgrade(&held));
                Ok(held)
            }
            Err(StoreError::NoSuchSet(_)) => Err(Lost::Gone),
            Err(error) => Err(Lost::Refused(unusable(set, error))),
        }
    }

    /// Takes a set that is gone from the engine, if it was brought there.
    pub(super) async fn withdraw(&self, hash: &str) {
        let is_first = lock(&self.provided).remove(hash);
        if is_first {
            lock(&self.left).insert(hash.to_owned());
        } else if !lock(&self.left).contains(hash) {
            return;
        }
        match self.backend.withdraw(hash).await {
            Ok(()) => drop(lock(&self.left).remove(hash)),
            Err(error) if is_first => {
                tracing::warn!(
                    %error,
                    hash,
                    "a set of packages could not be taken from the engine; trying again"
                );
            }
            Err(error) => tracing::debug!(%error, hash, "a set of packages is still on the engine"),
        }
    }

    /// Whether a request has a set now.
    pub(super) fn is_held(&self, hash: &str) -> bool {
        lock(&self.held).get(hash).is_some_and(|set| set.strong_count() > 0)
    }

    /// The lock that keeps a set from being removed while it is taken.
    pub(super) fn gate(&self, hash: &str) -> Arc<RwLock<()>> {
        let mut gates = lock(&self.gates);
        if let Some(gate) = gates.get(hash).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(RwLock::new(()));
        gates.insert(hash.to_owned(), Arc::downgrade(&gate));
        gate
    }
}

fn unusable(set: &StoredSet, error: impl Error + Send + Sync + 'static) -> Refusal {
    let what = format!("the set of packages {}", short(&set.hash));
    Refusal::Unusable { what, why: Arc::new(error) }
}
