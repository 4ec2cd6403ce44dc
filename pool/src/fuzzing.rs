//! Internal functions for the fuzzers (`fuzz/`), each at a place that untrusted input reaches. Other builds don't have them.

use std::sync::Arc;

use isolator_runner::wire::Wanted;
use tokio_util::task::TaskTracker;

use crate::engine::preload::Want;
use crate::engine::{Engine, SandboxName, SandboxSpec};
use crate::run::outcome::Outcome;
use crate::run::{RunError, RunRequest, RunTimes, run};
use crate::sandbox::Sandbox;
use crate::sandbox::activity::ActivityGate;
use crate::sandbox::reaper::Reaper;

pub use crate::engine::store::fuzzing::{clear, unpack};
pub use crate::pool::session::agent::fuzzing::{HeardOfAgent, heard_of_agent};
pub use crate::pool::session::fuzzing::shown;

/// Takes a sandbox of an engine through all of its states, the last of which is one request.
///
/// # Errors
///
/// As a pool's and a run's.
pub async fn execute(
    engine: Arc<dyn Engine>,
    spec: Arc<SandboxSpec>,
    request: &RunRequest,
) -> Result<(Outcome, RunTimes), RunError> {
    let tasks = TaskTracker::new();
    let reaper = Reaper::start(Arc::clone(&engine), Arc::new(ActivityGate::new()), &tasks);
    let lease = reaper.lease(SandboxName::new("fuzzed"));
    let mut sandbox = Sandbox::create(engine, lease, spec, &tasks, || {}).await?;
    while sandbox.missing().is_some() {
        sandbox.preload().await?;
    }
    let sandbox = sandbox.pause().await?.begin_to_resume(&tasks);
    run(sandbox, request, &Want::only(Wanted::Bare), &"", &tasks).await
}
