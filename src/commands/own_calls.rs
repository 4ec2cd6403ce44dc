//! Calls in the process of a command.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::pools::Pools;

use crate::app::{self, App, PoolFill};
use crate::audit::Audit;
use crate::calls::{Calls, Clients, Setup};
use crate::config::Config;
use crate::packages::Packages;
use crate::request::snippets::Snippets;
use crate::sessions::journals::Journals;
use crate::traces::Traces;

/// Calls on pools in which no sandbox waits.
pub(super) struct OwnCalls {
    /// Serves them.
    pub calls: Calls,
    /// The pools.
    pub pools: Arc<Pools>,
}

impl OwnCalls {
    /// For a configuration.
    ///
    /// # Errors
    ///
    /// When the engine can't do what is configured, or the store of sets of packages can't be opened.
    pub(super) fn start(app: &App, config: &Arc<Config>) -> anyhow::Result<Self> {
        let pools = Arc::new(app.start_pools(config, PoolFill::Nothing)?);
        let config = Arc::clone(config);
        let packages = match config.packages.is_used() {
            true => {
                let store = app::package_store(&config.packages.store)?;
                Packages::new(Arc::clone(&config), Arc::clone(&pools), store, true)
            }
            false => Packages::unused(Arc::clone(&config), true),
        };
        let snippets = Arc::new(Snippets::new(&config));
        let (audit, traces) = (Audit::default(), Traces::default());
        // Sessions of a command end with it.
        let journals = Journals::default();
        let setup = Setup { config, pools: Arc::clone(&pools), packages, audit, traces, journals };
        Ok(Self { calls: Calls::new(&setup, snippets, Clients::One), pools })
    }

    /// Ends everything and removes it.
    ///
    /// # Errors
    ///
    /// When something is left.
    pub(super) async fn close(&self, grace: Duration) -> anyhow::Result<()> {
        self.calls.packages().close().await;
        Ok(self.pools.close(grace).await?)
    }
}
