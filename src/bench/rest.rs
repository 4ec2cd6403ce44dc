//! When a server is at rest: its pools are full again, and what was used is gone.
//!
//! Only then is the next sample taken. A refill that goes on meanwhile, the server's own or another's,
//! would be measured with it. The engine shows the moment, where a pause could only guess it: there are
//! as many thawed and paused sandboxes as there shall be, and they are not the ones that were there
//! before the call.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};

use super::docker_api::RawDocker;
use super::error::BenchError;
use super::flow::PoolShape;

/// Longest wait. A pool is full in a few seconds; on a very busy machine it takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the engine is asked, which costs it some milliseconds.
const LOOK: Duration = Duration::from_millis(25);

/// Waits for a server to be at rest.
#[derive(Debug)]
pub(super) struct Rest {
    process: u32,
    thawed: usize,
    paused: usize,
    /// The containers that were there the last time.
    last: BTreeSet<String>,
}

impl Rest {
    /// Of a server with pools of this shape.
    pub(super) fn new(process: u32, pool: PoolShape, languages: usize) -> Self {
        let (thawed, paused) = (pool.hot * languages, (pool.size - pool.hot) * languages);
        Self { process, thawed, paused, last: BTreeSet::new() }
    }

    /// Waits until the server is at rest, which it was not since the last time.
    pub(super) async fn wait(&mut self, docker: &RawDocker) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            let containers = docker.containers_of(self.process).await?;
            if self.is_reached(&containers) {
                self.last = ids(&containers);
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let states =
                    containers.iter().filter_map(|c| c.state.map(|state| state.to_string()));
                let found = states.collect::<Vec<_>>().join(", ");
                return Err(BenchError::NeverAtRest { waited: PATIENCE, found });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn is_reached(&self, containers: &[ContainerSummary]) -> bool {
        let count = |state| containers.iter().filter(|c| c.state == Some(state)).count();
        let is_changed = self.last.is_empty() || ids(containers) != self.last;
        is_changed
            && containers.len() == self.thawed + self.paused
            && count(ContainerSummaryStateEnum::RUNNING) == self.thawed
            && count(ContainerSummaryStateEnum::PAUSED) == self.paused
    }
}

fn ids(containers: &[ContainerSummary]) -> BTreeSet<String> {
    containers.iter().filter_map(|container| container.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use ContainerSummaryStateEnum::{CREATED, PAUSED, RUNNING};

    use super::*;

    fn containers(all: &[(&str, ContainerSummaryStateEnum)]) -> Vec<ContainerSummary> {
        let container = |(id, state): &(&str, ContainerSummaryStateEnum)| ContainerSummary {
            id: Some((*id).to_owned()),
            state: Some(*state),
            ..ContainerSummary::default()
        };
        all.iter().map(container).collect()
    }

    #[test]
    fn a_server_rests_when_its_pool_is_full_and_nothing_else_is_there() {
        let rest = Rest::new(1, PoolShape { size: 2, hot: 1 }, 1);
        assert!(rest.is_reached(&containers(&[("a", RUNNING), ("b", PAUSED)])));
        for busy in [
            &[("a", RUNNING)][..],
            &[("a", RUNNING), ("b", CREATED)],
            &[("a", RUNNING), ("b", RUNNING)],
            &[("a", RUNNING), ("b", PAUSED), ("c", RUNNING)],
        ] {
            assert!(!rest.is_reached(&containers(busy)), "{busy:?}");
        }
        let without_a_pool = Rest::new(1, PoolShape { size: 0, hot: 0 }, 3);
        assert!(without_a_pool.is_reached(&[]));
    }

    #[test]
    fn what_was_there_before_a_call_is_not_a_full_pool_after_it() {
        let mut rest = Rest::new(1, PoolShape { size: 2, hot: 1 }, 1);
        let before = containers(&[("a", RUNNING), ("b", PAUSED)]);
        rest.last = ids(&before);
        assert!(!rest.is_reached(&before));
        assert!(rest.is_reached(&containers(&[("b", RUNNING), ("c", PAUSED)])));
    }
}
