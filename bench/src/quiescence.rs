//! When a server is quiescent: its pools are full again, and the used sandboxes are gone.
//!
//! Only then is the next sample taken, because a refill that still goes on, on this server or another, would be
//! measured with it. The engine shows when that is, where a pause could only guess: there are as many thawed and
//! paused sandboxes as there should be, and they are not the same ones as before the call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use isolator_pool::engine::instance::PROCESS;
use isolator_pool::engine::{Call, SandboxName, SandboxState, bounded};

use crate::error::BenchError;
use crate::scenario::PoolShape;
use crate::target::Target;

/// Longest wait. A pool is full in a few seconds; on a very busy machine it takes longer.
const QUIESCENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the engine is asked, which costs it some milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The sandboxes of a server, as its engine shows them to others.
type Sandboxes = BTreeMap<SandboxName, SandboxState>;

/// Waits for a server to be quiescent.
#[derive(Debug)]
pub(crate) struct Quiescence {
    process: u32,
    thawed: usize,
    paused: usize,
    /// The sandboxes that were there the last time.
    last: BTreeSet<SandboxName>,
}

impl Quiescence {
    /// Of a server with pools of this shape.
    pub(crate) fn new(process: u32, pool: PoolShape, languages: usize) -> Self {
        let (thawed, paused) = (pool.hot * languages, (pool.size - pool.hot) * languages);
        Self { process, thawed, paused, last: BTreeSet::new() }
    }

    /// The sandboxes that were there when it was quiescent last.
    pub(crate) fn waiting(&self) -> Vec<SandboxName> {
        self.last.iter().cloned().collect()
    }

    /// Waits until the server is quiescent on `target`. There must have been a call since the last time.
    pub(crate) async fn wait(&mut self, target: &Target) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            let sandboxes = self.list(target).await?;
            if self.is_reached(&sandboxes) {
                self.last = sandboxes.into_keys().collect();
                return Ok(());
            }
            if began.elapsed() > QUIESCENCE_TIMEOUT {
                let states = sandboxes.values().map(SandboxState::to_string);
                let found = states.collect::<Vec<_>>().join(", ");
                return Err(BenchError::NotQuiescent { waited: QUIESCENCE_TIMEOUT, found });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn list(&self, target: &Target) -> Result<Sandboxes, BenchError> {
        // The process namespace is the same, so only the number differs.
        let own = target.instance.labels().get(PROCESS).map(String::as_str).unwrap_or_default();
        let namespace = own.split('/').next().unwrap_or_default();
        let prefix = format!("{namespace}/{}/", self.process);
        let mut sandboxes = Sandboxes::new();
        for found in bounded(Call::List, target.engine.list()).await? {
            if found.labels.get(PROCESS).is_some_and(|process| process.starts_with(&prefix)) {
                let state = bounded(Call::State, target.engine.state(&found.name)).await?;
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
    fn a_server_is_quiescent_when_its_pool_is_full_and_nothing_else_is_there() {
        let quiescence = Quiescence::new(1, PoolShape { size: 2, hot: 1 }, 1);
        assert!(quiescence.is_reached(&sandboxes(&[("a", Running), ("b", Paused)])));
        for busy in [
            &[("a", Running)][..],
            &[("a", Running), ("b", Stopped)],
            &[("a", Running), ("b", Running)],
            &[("a", Running), ("b", Paused), ("c", Running)],
        ] {
            assert!(!quiescence.is_reached(&sandboxes(busy)), "{busy:?}");
        }
        let without_a_pool = Quiescence::new(1, PoolShape { size: 0, hot: 0 }, 3);
        assert!(without_a_pool.is_reached(&sandboxes(&[])));
    }

    #[test]
    fn what_was_there_before_a_call_is_not_a_full_pool_after_it() {
        let mut quiescence = Quiescence::new(1, PoolShape { size: 2, hot: 1 }, 1);
        let before = sandboxes(&[("a", Running), ("b", Paused)]);
        quiescence.last = before.keys().cloned().collect();
        assert!(!quiescence.is_reached(&before));
        assert!(quiescence.is_reached(&sandboxes(&[("b", Running), ("c", Paused)])));
    }
}
