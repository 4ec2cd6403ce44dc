//! The state that the tasks and the calls about sets of packages share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use isolator_pool::counts::Count;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Admission;
use serde::Serialize;
use tokio::sync::{RwLock, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::packages::backend::Backend;
use crate::packages::blocking::blocking;
use crate::packages::clients::SetsOfClients;
use crate::packages::jobs::Jobs;
use crate::packages::line;
use crate::packages::refusal::Refusal;

/// Counts for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PackageCounts {
    /// Sets of the configuration.
    pub named: usize,
    /// Those of them that can be used at once.
    pub ready: usize,
    /// Builds that run or wait for their turn.
    pub building: usize,
    /// Sets that requests use now.
    pub in_use: usize,
    /// Builds that have ended with a set, and those that have failed.
    pub built: u64,
    pub failed: u64,
    /// Requests of running programs that have got packages, and those that have not.
    pub installs: u64,
    pub refused_installs: u64,
}

/// The state that stays when the configuration changes.
pub(super) struct Common {
    pub jobs: Jobs,
    /// Where builds wait for their turn.
    pub line: Admission,
    /// One for each set that was taken or removed: taking one excludes its removal.
    pub gates: Mutex<HashMap<String, Weak<RwLock<()>>>>,
    /// Sets that requests have now, by their hashes.
    pub held: Mutex<HashMap<String, Weak<PackageSet>>>,
    /// Sets that the sandboxes of each client have.
    pub sets_of_clients: SetsOfClients,
    pub has_one_client: bool,
    /// When sets were last used by this server: the store notes it less often.
    pub uses: Mutex<HashMap<String, SystemTime>>,
    /// Hashes of the sets that were brought to the engine.
    pub provided: Mutex<HashSet<String>>,
    /// Hashes of the sets that could not be taken from the engine. That is tried again.
    pub left: Mutex<HashSet<String>>,
    /// Builds that have ended with a set, and those that have failed.
    pub built: Count,
    pub failed: Count,
    /// Requests of running programs that have got packages, and those that have not.
    pub installs: Count,
    pub refused_installs: Count,
    /// The configuration that has taken the place of the first one, with its state.
    pub newest: Mutex<Option<(Arc<Config>, Weak<Shared>)>>,
    pub changes: watch::Sender<u64>,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

impl Common {
    pub(super) fn new(has_one_client: bool, stop: CancellationToken) -> Self {
        Self {
            jobs: Jobs::new(has_one_client),
            line: line::new(has_one_client),
            gates: Mutex::default(),
            held: Mutex::default(),
            sets_of_clients: SetsOfClients::default(),
            has_one_client,
            uses: Mutex::default(),
            provided: Mutex::default(),
            left: Mutex::default(),
            built: Count::default(),
            failed: Count::default(),
            installs: Count::default(),
            refused_installs: Count::default(),
            newest: Mutex::default(),
            changes: watch::Sender::new(0),
            stop,
            tasks: TaskTracker::new(),
        }
    }

    /// Says that a set of the configuration has come, failed or gone.
    pub(super) fn has_changed(&self) {
        self.changes.send_modify(|number| *number += 1);
    }
}

/// The state of one configuration that has packages.
pub(super) struct Shared {
    pub config: Arc<Config>,
    pub backend: Arc<dyn Backend>,
    /// Cancelled when another configuration has taken the place of this one.
    pub replaced: CancellationToken,
    pub common: Arc<Common>,
}

impl std::ops::Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Shared {
    /// Lets the backend read files, on a thread that may block.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Backend) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let backend = Arc::clone(&self.backend);
        blocking(move || work(&*backend)).await.map_err(|_| Refusal::Stopping)
    }
}
