//! An engine to measure on.

use std::sync::Arc;

use isolator_pool::engine::Engine;
use isolator_pool::engine::docker::EngineAddress;
use isolator_pool::engine::instance::Instance;
use serde_json::Value;

use crate::scenario::{Scenario, TargetKind};
use crate::workload::Workload;

/// An engine to measure on.
pub struct Target {
    /// Its kind.
    pub kind: TargetKind,
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// This process on the engine. What it leaves there is swept as a dead server's sandboxes are.
    pub instance: Arc<Instance>,
    /// What [`Engine::check`] says.
    pub description: String,
    /// Where the plain Docker API is reached, on an engine that has one.
    pub docker: Option<EngineAddress>,
    /// The configuration of the servers on this engine, to which [`settings`](crate::settings) adds languages
    /// and pools.
    pub settings: Value,
    /// The programs whose images the engine has.
    pub workloads: Vec<Arc<Workload>>,
    /// How they are started.
    pub scenarios: &'static [Scenario],
}

impl Target {
    /// The scenario that tries a program: the simplest one with a server, if there is one.
    pub(crate) fn trial(&self) -> Scenario {
        let served = self.scenarios.iter().find(|scenario| scenario.server().is_some());
        served.copied().unwrap_or(Scenario::DockerCold)
    }
}
