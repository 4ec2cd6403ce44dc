//! Finds sandboxes without a lease.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::engine::{Call, bounded};

/// How often to look for sandboxes that appeared after their creation had timed out.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);

/// Removes sandboxes of this instance without a lease: they were created after the call had timed out.
///
/// A name must be unknown twice in a row, because the list can be older than the end of a lease.
pub(super) async fn reconcile(shared: std::sync::Weak<Shared>, stop: CancellationToken) {
    let mut suspects = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RECONCILE_INTERVAL) => {}
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let found = match bounded(Call::List, shared.engine.list()).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "could not list the engine's sandboxes to find forgotten ones");
                continue;
            }
        };
        let unknown = found
            .into_iter()
            .filter(|found| {
                shared.instance.owns(&found.labels) && !shared.reaper.knows(&found.name)
            })
            .map(|found| found.name);
        let (late, new): (BTreeSet<_>, _) = unknown.partition(|name| suspects.contains(name));
        suspects = new;
        for name in late {
            tracing::warn!(sandbox = %name, "removing a sandbox that appeared after its request had timed out");
            shared.counts.swept.add(1);
            shared.reaper.adopt(name);
        }
    }
}
