//! The sets that the sandboxes of each client have. A set is not removed as long as a sandbox has it, so the sandboxes of one client must not
//! have all that there is room for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;

/// The sets of one client, by their hashes.
pub(super) type OwnSets = HashMap<String, Weak<PackageSet>>;

/// The sets of each client. Only those that are in use count.
#[derive(Debug, Default)]
pub(super) struct SetsOfClients(Mutex<HashMap<Client, OwnSets>>);

impl SetsOfClients {
    /// Notes that a sandbox of the client begins with a set.
    pub(super) fn note(&self, client: &Client, set: &Arc<PackageSet>) {
        self.with(client, |own| own.insert(set.hash.clone(), Arc::downgrade(set)));
    }

    /// Works on the client's sets that are in use, under the lock.
    pub(super) fn with<T>(&self, client: &Client, work: impl FnOnce(&mut OwnSets) -> T) -> T {
        let mut all = lock(&self.0);
        all.retain(|_, sets| {
            sets.retain(|_, set| set.strong_count() > 0);
            !sets.is_empty()
        });
        work(all.entry(client.clone()).or_default())
    }
}
