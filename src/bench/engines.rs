//! The engines that are measured: those that are there, and on each the programs whose images it has.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use isolator_pool::engine::embedded;
use isolator_pool::engine::{Call, bounded};

use super::programs::Workload;
use super::scenario::Scenario;
use crate::app::App;
use crate::config::{Config, EngineKind};

/// An engine that is measured.
pub struct Side {
    /// Its kind, which is never [`EngineKind::Auto`].
    pub kind: EngineKind,
    /// This process on it.
    pub app: App,
    /// What it says of itself.
    pub described: String,
    /// The programs whose images it has.
    pub subjects: Vec<Arc<Workload>>,
    /// What is measured of it.
    pub flows: &'static [Scenario],
}

/// What there is to measure on.
#[derive(Default)]
pub struct Engines {
    /// The engines.
    pub sides: Vec<Side>,
    /// What is left out, and why.
    pub left_out: Vec<String>,
}

impl Engines {
    /// Looks for the configured engine, and for every one where the configuration leaves the choice. The
    /// plain Docker API is looked for beside the embedded engine too, to compare it with.
    ///
    /// # Errors
    ///
    /// When the configured engine or an image on it is missing, or all engines are.
    pub async fn find(
        config: &Config,
        program: &Path,
        subjects: &[Arc<Workload>],
    ) -> anyhow::Result<Self> {
        let configured = config.engine.kind;
        let mut found = Self::default();
        for kind in [EngineKind::Docker, EngineKind::Embedded] {
            let flows = match (configured, kind) {
                (EngineKind::Docker, EngineKind::Embedded) => continue,
                (EngineKind::Embedded, EngineKind::Docker) => &Scenario::PLAIN[..],
                (_, EngineKind::Embedded) => &Scenario::EMBEDDED,
                _ => &Scenario::DOCKER,
            };
            match found.add(kind, config, program, subjects, flows).await {
                Err(error) if configured == kind => return Err(error),
                Err(error) => found.left_out.push(format!("{}: {error:#}", name(kind))),
                Ok(()) => {}
            }
        }
        found.sides.retain(|side| !side.subjects.is_empty());
        if found.sides.is_empty() {
            let left_out = found.left_out.join("; ");
            bail!("nothing can be measured: {left_out}; isolator doctor says what to do");
        }
        Ok(found)
    }

    async fn add(
        &mut self,
        kind: EngineKind,
        config: &Config,
        program: &Path,
        subjects: &[Arc<Workload>],
        flows: &'static [Scenario],
    ) -> anyhow::Result<()> {
        let app = App::on(kind, config, program).await?;
        let checked = bounded(Call::Check, app.engine.check()).await;
        let described =
            checked.context("nothing can be measured; isolator doctor says what to do")?;
        if kind == EngineKind::Embedded && !embedded::shows_sandboxes() {
            bail!(
                "nothing can be measured where there are no control groups: nobody sees then whether a \
                 server's pool is full; isolator doctor says what to do"
            );
        }
        let mut side = Side { kind, app, described, subjects: Vec::new(), flows };
        for subject in subjects {
            match side.require_image(subject, config.engine.kind).await {
                Ok(()) => side.subjects.push(Arc::clone(subject)),
                Err(error) if config.engine.kind == kind => return Err(error),
                Err(error) => {
                    let error = format!("{} on {}: {error:#}", subject.label(), name(kind));
                    self.left_out.push(error);
                }
            }
        }
        self.sides.push(side);
        Ok(())
    }
}

impl Side {
    async fn require_image(
        &self,
        subject: &Workload,
        configured: EngineKind,
    ) -> anyhow::Result<()> {
        let language = &subject.language;
        let image = &language.sandbox.image.name;
        if self.app.images.find(image).await?.is_none() {
            let how = if self.app.images.is_built(image) { "build" } else { "pull" };
            let on = match self.kind {
                kind if kind == configured => "",
                EngineKind::Embedded => "--engine embedded ",
                _ => "--engine docker ",
            };
            bail!("image {image} is missing: isolator {on}image {how} {}", language.name);
        }
        Ok(())
    }

    /// The flow that tries a program: the simplest that has to do with Isolator, where one has.
    pub(super) fn trial(&self) -> Scenario {
        let served = self.flows.iter().find(|flow| flow.server().is_some());
        served.copied().unwrap_or(Scenario::DockerCold)
    }
}

/// What messages call an engine.
const fn name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Embedded => "the embedded engine",
        EngineKind::Docker | EngineKind::Auto => "docker",
    }
}
