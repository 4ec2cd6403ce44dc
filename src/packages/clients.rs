//! The sets that the sandboxes of each client have. A set is not removed as long as a sandbox has it, so the sandboxes of one client must not
//! have all that there is room for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;

use super::Packages;

/// The sets of each client. Only those that are in use count.
#[derive(Debug, Default)]
pub(super) struct SetsOfClients(Mutex<HashMap<Client, HashMap<String, Weak<PackageSet>>>>);

impl SetsOfClients {
    /// Notes that a sandbox of the client gets a set.
    pub(super) fn note(&self, client: &Client, set: &Arc<PackageSet>) {
        let mut all = lock(&self.0);
        all.retain(|_, sets| {
            sets.retain(|_, set| set.strong_count() > 0);
            !sets.is_empty()
        });
        all.entry(client.clone()).or_default().insert(set.hash.clone(), Arc::downgrade(set));
    }

    /// The number of the client's sets without these.
    fn count(&self, client: &Client, without: &[String]) -> usize {
        let all = lock(&self.0);
        let sets = all.get(client).into_iter().flatten();
        sets.filter(|(hash, set)| set.strong_count() > 0 && !without.contains(hash)).count()
    }
}

impl Packages {
    /// How many sets on demand the sandboxes of a client have, if a running program of it can't be given another. They can be half of those
    /// that there can be, unless there is only one client.
    pub(super) fn too_many_of(&self, client: &Client) -> Option<usize> {
        let on_demand = self.config.packages.on_demand()?;
        if self.common.has_one_client {
            return None;
        }
        // Those of the configuration take no room from others.
        let named = self.listed().into_iter().filter_map(|listed| Some(listed.set?.hash));
        let most = (on_demand.max_sets / 2).max(1);
        let count = self.common.sets_of_clients.count(client, &named.collect::<Vec<_>>());
        (count >= most).then_some(count)
    }
}
