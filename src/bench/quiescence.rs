//! When a server is at rest: its pools are full again, and what was used is gone.
//!
//! Only then is the next sample taken. A refill that goes on meanwhile, the server's own or another's,
//! would be measured with it. The engine shows the moment, where a pause could only guess it: there are
//! as many thawed and paused sandboxes as there shall be, and they are not the ones that were there
//! before the call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use isolator_pool::engine::instance::PROCESS;
use isolator_pool::engine::{Call, SandboxName, SandboxState, bounded};

use super::error::BenchError;
use super::scenario::PoolShape;
use crate::app::App;

/// Longest wait. A pool is full in a few seconds; on a very busy machine it takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the engine is asked, which costs it some milliseconds.
const LOOK: Duration = Duration::from_millis(25);

/// The sandboxes of a server, as its engine shows them to others.
type Sandboxes = BTreeMap<SandboxName, SandboxState>;

/// Waits for a server to be at rest.
#[derive(Debug)]
pub(super) struct Rest {
    process: u32,
    thawed: usize,
    paused: usize,
    /// The sandboxes that were there the last time.
    last: BTreeSet<SandboxName>,
}

impl Rest {
    /// Of a server with pools of this shape.
    pub(super) fn new(process: u32, pool: PoolShape, languages: usize) -> Self {
        let (thawed, paused) = (pool.hot * languages, (pool.size - pool.hot) * languages);
        Self { process, thawed, paused, last: BTreeSet::new() }
    }

    /// Waits until the server is at rest, which it was not since the last time. `app` is this process on the
    /// server's engine.
    pub(super) async fn wait(&mut self, app: &App) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            let sandboxes = self.look(app).await?;
            if self.is_reached(&sandboxes) {
                self.last = sandboxes.into_keys().collect();
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let states = sandboxes.values().map(SandboxState::to_string);
                let found = states.collect::<Vec<_>>().join(", ");
                return Err(BenchError::NeverAtRest { waited: PATIENCE, found });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&self, app: &App) -> Result<Sandboxes, BenchError> {
        // The process namespace is the same, so only the number differs.
        let own = app.owner.labels().get(PROCESS).map(String::as_str).unwrap_or_default();
        let namespace = own.split('/').next().unwrap_or_default();
        let prefix = format!("{namespace}/{}/", self.process);
        let mut sandboxes = Sandboxes::new();
        for found in bounded(Call::List, app.engine.list()).await? {
            if found.labels.get(PROCESS).is_some_and(|process| process.starts_with(&prefix)) {
                let state = bounded(Call::State, app.engine.state(&found.name)).await?;
                sandboxes.insert(found.name, state);
            }
        }
        Ok(sandboxes)
    }

    fn is_reached(&self, sandboxes: &Sandboxes) -> bool {
        let count = |state| sandboxes.values().filter(|found| **found == state).count();
        let is_changed = self.last.is_empty() || !sandboxes.keys().eq(&self.last);
        is_changed
            && sandboxes.len() == self.thawed + self.paused
            && count(SandboxState::Running) == self.thawed
            && count(SandboxState::Paused) == self.paused
    }
}

#[cfg(test)]
mod tests {
    use SandboxState::{Paused, Running, Stopped};

    use super::*;

    fn sandboxes(all: &[(&str, SandboxState)]) -> Sandboxes {
        all.iter().map(|(name, state)| (SandboxName::new(*name), *state)).collect()
    }

    #[test]
    fn a_server_rests_when_its_pool_is_full_and_nothing_else_is_there() {
        let rest = Rest::new(1, PoolShape { size: 2, hot: 1 }, 1);
        assert!(rest.is_reached(&sandboxes(&[("a", Running), ("b", Paused)])));
        for busy in [
            &[("a", Running)][..],
            &[("a", Running), ("b", Stopped)],
            &[("a", Running), ("b", Running)],
            &[("a", Running), ("b", Paused), ("c", Running)],
        ] {
            assert!(!rest.is_reached(&sandboxes(busy)), "{busy:?}");
        }
        let without_a_pool = Rest::new(1, PoolShape { size: 0, hot: 0 }, 3);
        assert!(without_a_pool.is_reached(&sandboxes(&[])));
    }

    #[test]
    fn what_was_there_before_a_call_is_not_a_full_pool_after_it() {
        let mut rest = Rest::new(1, PoolShape { size: 2, hot: 1 }, 1);
        let before = sandboxes(&[("a", Running), ("b", Paused)]);
        rest.last = before.keys().cloned().collect();
        assert!(!rest.is_reached(&before));
        assert!(rest.is_reached(&sandboxes(&[("b", Running), ("c", Paused)])));
    }
}
