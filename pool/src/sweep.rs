//! Sweeping: what dead instances left on the engine.

use crate::engine::{Call, Engine, EngineError, Whose, bounded};
use crate::owner::Owner;

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sandboxes.
    pub sandboxes: usize,
    /// What sandboxes shared, such as volumes.
    pub shared: usize,
}

/// Removes what belongs to instances that are proven dead. Whatever is not proven stays.
///
/// # Errors
///
/// The engine's; what was not removed then is left to the next sweep.
pub async fn sweep(engine: &dyn Engine, owner: &Owner) -> Result<Swept, EngineError> {
    let swept = remove_where(engine, &|labels| owner.is_dead(labels)).await?;
    if let Err(error) = owner.sweep_locks() {
        tracing::warn!(%error, "lock files of dead instances could not be removed");
    }
    Ok(swept)
}

/// Removes whatever this instance still has on the engine. For the end of its life.
///
/// # Errors
///
/// The engine's.
pub async fn sweep_own(engine: &dyn Engine, owner: &Owner) -> Result<Swept, EngineError> {
    remove_where(engine, &|labels| owner.owns(labels)).await
}

/// Removes what it can; what it can't is logged, and the last such error is returned.
async fn remove_where(engine: &dyn Engine, ours: Whose<'_>) -> Result<Swept, EngineError> {
    let mut swept = Swept::default();
    let mut failed = None;
    for found in bounded(Call::List, engine.list()).await? {
        if !ours(&found.labels) {
            continue;
        }
        match bounded(Call::Remove, engine.remove(&found.name)).await {
            Ok(()) => swept.sandboxes += 1,
            Err(error) => {
                tracing::warn!(sandbox = %found.name, %error, "a leftover could not be removed");
                failed = Some(error);
            }
        }
    }
    swept.shared = bounded(Call::Sweep, engine.sweep_shared(ours)).await?;
    failed.map_or(Ok(swept), Err)
}
