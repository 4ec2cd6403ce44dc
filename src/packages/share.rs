//! How many sets the sandboxes of one client can have.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;

use super::clients::OwnSets;
use super::installing::NotInstalled;
use super::{Packages, making};
use crate::config::Language;
use crate::packages::asked::plan;

/// The part of the sets on demand that the sandboxes of one client can have.
struct Share {
    most: usize,
    /// The hashes of the sets that the configuration names, which take no room from others.
    named: Vec<String>,
}

impl Share {
    /// Whether a client with these sets can have one more: the one with this hash, or if it is not known, one that it does not have.
    ///
    /// # Errors
    ///
    /// The number of those that it has, if it can't have more.
    fn check(&self, own: &OwnSets, hash: Option<&str>) -> Result<(), usize> {
        let is_named = |hash: &str| self.named.iter().any(|named| named == hash);
        if hash.is_some_and(|hash| is_named(hash) || own.contains_key(hash)) {
            return Ok(());
        }
        let count = own.keys().filter(|hash| !is_named(hash)).count();
        if count < self.most { Ok(()) } else { Err(count) }
    }
}

impl Packages {
    /// The sandboxes of a client can have half of the sets that there can be on demand, unless there is only one client.
    fn share_of_client(&self) -> Option<Share> {
        let on_demand = self.config.packages.on_demand()?;
        if self.common.has_one_client {
            return None;
        }
        let named = self.listed().into_iter().filter_map(|listed| Some(listed.set?.hash));
        Some(Share { most: (on_demand.max_sets / 2).max(1), named: named.collect() })
    }

    /// Whether a running sandbox of the client can be given the set with all of this, so that none is built that it can't be given.
    ///
    /// # Errors
    ///
    /// When the client has too many, and this would be another one.
    pub(super) async fn check_share(
        &self,
        language: &Language,
        asked: &[String],
        keeps: &BTreeMap<String, String>,
        client: &Client,
    ) -> Result<(), NotInstalled> {
        let Some(share) = self.share_of_client() else { return Ok(()) };
        let check = |hash: Option<&str>| {
            self.common.sets_of_clients.with(client, |own| share.check(own, hash))
        };
        if check(None).is_ok() {
            return Ok(());
        }
        let plan = plan(&self.config, language, asked)?.keeping(keeps.clone());
        if plan.key.set.is_some() {
            return Ok(());
        }
        let found = making::known_or_found(self.shared(language)?, language, &plan).await;
        check(found.as_ref().map(|set| set.hash.as_str())).map_err(NotInstalled::ClientHasTooMany)
    }

    /// Notes that a running sandbox of the client gets a set.
    ///
    /// # Errors
    ///
    /// The number of those that it has, if it can't have more.
    pub(super) fn note_share(&self, client: &Client, set: &Arc<PackageSet>) -> Result<(), usize> {
        let share = self.share_of_client();
        // Requests at once are counted one after the other.
        self.common.sets_of_clients.with(client, |own| {
            if let Some(share) = &share {
                share.check(own, Some(&set.hash))?;
            }
            own.insert(set.hash.clone(), Arc::downgrade(set));
            Ok(())
        })
    }
}
