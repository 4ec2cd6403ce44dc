//! The engines to measure on: those that are available, each with the programs whose images it has.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use isolator::app::{App, engine_address};
use isolator::commands::isolator;
use isolator::config::{Config, EngineKind};
use isolator_pool::engine::docker::EngineAddress;
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::{Call, Engine, bounded, embedded};
use serde_json::Value;

use crate::scenario::{Scenario, TargetKind};
use crate::settings;
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

/// The engines that can be measured on this machine.
#[derive(Default)]
pub struct Targets {
    /// The engines.
    pub found: Vec<Target>,
    /// The parts that are left out, with the reasons.
    pub left_out: Vec<String>,
}

impl Targets {
    /// Looks for the configured engine, or for every engine if the configuration leaves the choice. With the
    /// embedded engine it also looks for the plain Docker API, to compare. `program` is the binary.
    ///
    /// # Errors
    ///
    /// When the configured engine or an image on it is missing, or all engines are.
    pub async fn find(
        config: &Config,
        program: &Path,
        workloads: &[Arc<Workload>],
    ) -> anyhow::Result<Self> {
        let configured = config.engine.kind;
        let mut targets = Self::default();
        for kind in [EngineKind::Docker, EngineKind::Embedded] {
            let scenarios = match (configured, kind) {
                (EngineKind::Docker, EngineKind::Embedded) => continue,
                (EngineKind::Embedded, EngineKind::Docker) => &Scenario::PLAIN[..],
                (_, EngineKind::Embedded) => &Scenario::EMBEDDED,
                _ => &Scenario::DOCKER,
            };
            match targets.add(kind, config, program, workloads, scenarios).await {
                Err(error) if configured == kind => return Err(error),
                Err(error) => targets.left_out.push(format!("{}: {error:#}", name(kind))),
                Ok(()) => {}
            }
        }
        targets.found.retain(|target| !target.workloads.is_empty());
        if targets.found.is_empty() {
            let left_out = targets.left_out.join("; ");
            bail!("nothing can be measured: {left_out}; isolator doctor says what to do");
        }
        Ok(targets)
    }

    async fn add(
        &mut self,
        kind: EngineKind,
        config: &Config,
        program: &Path,
        workloads: &[Arc<Workload>],
        scenarios: &'static [Scenario],
    ) -> anyhow::Result<()> {
        let app = App::on(kind, config, program).await?;
        let checked = bounded(Call::Check, app.engine.check()).await;
        let description =
            checked.context("nothing can be measured; isolator doctor says what to do")?;
        if kind == EngineKind::Embedded && !embedded::shows_sandboxes() {
            bail!(
                "nothing can be measured without control groups, which show when a server's pool is \
                 full; isolator doctor says what to do"
            );
        }
        let mut measured = Vec::new();
        for workload in workloads {
            match require_image(&app, workload, config).await {
                Ok(()) => measured.push(Arc::clone(workload)),
                Err(error) if config.engine.kind == kind => return Err(error),
                Err(error) => {
                    let error = format!("{} on {}: {error:#}", workload.label(), name(kind));
                    self.left_out.push(error);
                }
            }
        }
        let (kind, docker) = match app.kind {
            EngineKind::Embedded => (TargetKind::Embedded, None),
            _ => (TargetKind::Docker, Some(engine_address(config)?)),
        };
        self.found.push(Target {
            kind,
            engine: app.engine,
            instance: app.instance,
            description,
            docker,
            settings: settings::for_servers(config, app.kind)?,
            workloads: measured,
            scenarios,
        });
        Ok(())
    }
}

async fn require_image(app: &App, workload: &Workload, config: &Config) -> anyhow::Result<()> {
    let image = &workload.sandbox.image.name;
    if app.images.find(image).await?.is_none() {
        let how = if app.images.is_built(image) { "build" } else { "pull" };
        let isolator = isolator(config, app.kind);
        let language = workload.program.language;
        bail!("image {image} is missing: {isolator} image {how} {language}");
    }
    Ok(())
}

/// What messages call an engine.
const fn name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Embedded => "the embedded engine",
        EngineKind::Docker | EngineKind::Auto => "docker",
    }
}
