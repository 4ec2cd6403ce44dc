//! Sweeping: removes the sandboxes that dead instances left on the engine.

use std::fmt;
use std::time::Duration;

use crate::engine::instance::Instance;
use crate::engine::{Call, Engine, EngineError, LabelFilter, bounded};

/// The things that a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sandboxes.
    pub sandboxes: usize,
    /// Things that sandboxes shared, such as volumes.
    pub shared: usize,
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sandboxes, shared } = *self;
        let of_sandboxes = if sandboxes == 1 { "sandbox" } else { "sandboxes" };
        let of_shared = if shared == 1 { "volume" } else { "volumes" };
        write!(f, "{sandboxes} {of_sandboxes} and {shared} {of_shared}")
    }
}

/// Removes everything that belongs to instances that are proven dead, and nothing else.
///
/// # Errors
///
/// The engine's; the next sweep removes the rest.
pub async fn sweep(engine: &dyn Engine, instance: &Instance) -> Result<Swept, EngineError> {
    let swept = remove_where(engine, &|labels| instance.is_dead(labels)).await?;
    if let Err(error) = instance.sweep_locks() {
        tracing::warn!(%error, "lock files of dead instances could not be removed");
    }
    Ok(swept)
}

/// Removes everything that this instance still has on the engine, at shutdown.
///
/// # Errors
///
/// The engine's.
pub async fn sweep_own(engine: &dyn Engine, instance: &Instance) -> Result<Swept, EngineError> {
    remove_where(engine, &|labels| instance.owns(labels)).await
}

/// Number of attempts, and the interval between them, while the engine refuses a removal.
const SWEEP_ATTEMPTS: u32 = 5;
const SWEEP_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Removes everything that it can. Failures are logged, and the last one is returned.
///
/// If a server is killed while it makes a sandbox, the engine goes on: the sandbox may appear after the others
/// were listed, and keep shared volumes in use. So a refused removal is tried again.
async fn remove_where(engine: &dyn Engine, ours: LabelFilter<'_>) -> Result<Swept, EngineError> {
    let mut swept = Swept::default();
    for _ in 1..SWEEP_ATTEMPTS {
        match remove_once(engine, ours, &mut swept).await {
            Err(EngineError::Refused { .. }) => tokio::time::sleep(SWEEP_RETRY_INTERVAL).await,
            removed => return removed.map(|()| swept),
        }
    }
    remove_once(engine, ours, &mut swept).await.map(|()| swept)
}

async fn remove_once(
    engine: &dyn Engine,
    ours: LabelFilter<'_>,
    swept: &mut Swept,
) -> Result<(), EngineError> {
    let mut failed = None;
    for found in bounded(Call::List, engine.list()).await? {
        if !ours(&found.labels) {
            continue;
        }
        match bounded(Call::Remove, engine.remove(&found.name)).await {
            Ok(()) => swept.sandboxes += 1,
            Err(error) => {
                tracing::warn!(sandbox = %found.name, %error, "a leftover sandbox could not be removed");
                failed = Some(error);
            }
        }
    }
    swept.shared += bounded(Call::Sweep, engine.sweep_shared(ours)).await?;
    failed.map_or(Ok(()), Err)
}
