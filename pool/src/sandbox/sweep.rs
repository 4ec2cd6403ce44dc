//! Sweeping: what dead instances left on the engine.

use std::time::Duration;

use crate::engine::instance::Instance;
use crate::engine::{Call, Engine, EngineError, LabelFilter, bounded};

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
pub async fn sweep(engine: &dyn Engine, owner: &Instance) -> Result<Swept, EngineError> {
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
pub async fn sweep_own(engine: &dyn Engine, owner: &Instance) -> Result<Swept, EngineError> {
    remove_where(engine, &|labels| owner.owns(labels)).await
}

/// How often, and how far apart, is swept again while something is still made of what is to be removed.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Removes what it can; what it can't is logged, and the last such error is returned.
///
/// A server that is killed in the midst of making a sandbox leaves an engine that goes on with it: it appears
/// after the others were listed, and holds what they shared. So the engine's refusal is not believed at once.
async fn remove_where(engine: &dyn Engine, ours: LabelFilter<'_>) -> Result<Swept, EngineError> {
    let mut swept = Swept::default();
    for _ in 1..ROUNDS {
        match remove_once(engine, ours, &mut swept).await {
            Err(EngineError::Refused { .. }) => tokio::time::sleep(PAUSE).await,
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
                tracing::warn!(sandbox = %found.name, %error, "a leftover could not be removed");
                failed = Some(error);
            }
        }
    }
    swept.shared += bounded(Call::Sweep, engine.sweep_shared(ours)).await?;
    failed.map_or(Ok(()), Err)
}
