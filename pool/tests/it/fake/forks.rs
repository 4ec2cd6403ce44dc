//! The template of the fake engine, and what comes of forking it.

use std::time::Duration;

use isolator_pool::engine::preload::{AwaitedFork, Fork, Forked};
use isolator_pool::engine::{Call, EngineError, SandboxName, SandboxSpec, refused};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;

/// The fate of an interpreter that is forked. A failure of the call itself is a [`Fault`] of
/// [`Call::Preload`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Forking {
    /// The engine has no templates.
    #[default]
    Never,
    /// It waits in its sandbox.
    Comes,
    /// The template says that it can't, and nothing has come into the sandbox.
    Refused,
    /// It ends in the sandbox, and the runner says so.
    EndsInside,
    /// The runner is never heard of again.
    Silence,
    /// The runner ends over it.
    Eof,
}

/// The version of the interpreter that a template has.
pub(crate) const KERNEL_VERSION: &str = "3.13.5";

/// The template, which serves all sandboxes.
pub(super) struct Template {
    pub(super) forking: Forking,
    /// How long it takes to make one.
    takes: Duration,
    stage: Stage,
    /// Wakes the callers that wait for it.
    changed: watch::Sender<()>,
    /// Modules that it has imported because programs asked for them.
    learned: Vec<String>,
    /// Templates that were begun.
    begun: usize,
    /// Forks that came into a sandbox.
    forks: usize,
    /// Templates whose forks did not get ready.
    given_up: usize,
}

/// Whether there is one. The token tells when it ends.
#[derive(Debug, Clone)]
enum Stage {
    Missing,
    BeingMade(CancellationToken),
    Running(CancellationToken),
}

impl Default for Template {
    fn default() -> Self {
        Self {
            forking: Forking::Never,
            takes: Duration::ZERO,
            stage: Stage::Missing,
            changed: watch::Sender::new(()),
            learned: Vec::new(),
            begun: 0,
            forks: 0,
            given_up: 0,
        }
    }
}

impl Template {
    /// Whether a fork of it is better for a program than what waits in the sandbox.
    pub(super) fn suits(&self, fork: &AwaitedFork) -> bool {
        let is_running = matches!(self.stage, Stage::Running(_));
        is_running && (!fork.is_there || self.is_learned_for(fork))
    }

    fn is_learned_for(&self, fork: &AwaitedFork) -> bool {
        !self.learned.is_empty()
            && self.learned.iter().all(|module| fork.imports.modules.contains(module))
    }

    /// The modules of its fork.
    fn modules(&self, spec: &SandboxSpec, fork: &Fork) -> Vec<String> {
        let of_language = |with_modules| {
            let preload = spec.preload.as_ref().filter(|_| with_modules);
            preload.map(|preload| preload.modules.clone()).unwrap_or_default()
        };
        match fork {
            Fork::Awaited(fork) if self.is_learned_for(fork) => self.learned.clone(),
            Fork::Awaited(AwaitedFork { with_modules, .. })
            | Fork::Spare { with_modules }
            | Fork::Kernel { with_modules } => of_language(*with_modules),
        }
    }

    fn set(&mut self, stage: Stage) -> Stage {
        self.changed.send_replace(());
        std::mem::replace(&mut self.stage, stage)
    }
}

impl FakeEngine {
    pub(super) fn forking(&self) -> Forking {
        self.books().template.forking
    }

    /// The result of forks from now on. By default the engine has no templates.
    pub(crate) fn forks(&self, forking: Forking) {
        self.books().template.forking = forking;
    }

    /// How long it takes to make a template.
    pub(crate) fn template_takes(&self, takes: Duration) {
        self.books().template.takes = takes;
    }

    /// Lets the template have the modules that programs asked for.
    pub(crate) fn learn(&self, modules: &[&str]) {
        self.books().template.learned = modules.iter().map(|&module| module.to_owned()).collect();
    }

    /// Ends the template. Requests that wait for a fork of it get none.
    pub(crate) fn kill_template(&self) {
        let stage = self.books().template.set(Stage::Missing);
        if let Stage::BeingMade(end) | Stage::Running(end) = stage {
            end.cancel();
        }
    }

    /// Forgets the template. What it is doing it still does.
    pub(crate) fn evict_template(&self) {
        self.books().template.set(Stage::Missing);
    }

    /// A fork of the template did not get ready.
    pub(super) fn give_up_template(&self) {
        let template = &mut self.books().template;
        template.given_up += 1;
        template.set(Stage::Missing);
    }

    /// Templates that were given up.
    pub(crate) fn given_up(&self) -> usize {
        self.books().template.given_up
    }

    pub(crate) fn has_template(&self) -> bool {
        matches!(self.books().template.stage, Stage::Running(_))
    }

    /// Templates that were begun.
    pub(crate) fn templates(&self) -> usize {
        self.books().template.begun
    }

    /// Forks that came into a sandbox.
    pub(crate) fn forked(&self) -> usize {
        self.books().template.forks
    }

    /// Begins to make a template, unless there is one.
    pub(super) fn make_template(&self) {
        let mut books = self.books();
        let template = &mut books.template;
        if template.forking == Forking::Never || !matches!(template.stage, Stage::Missing) {
            return;
        }
        template.begun += 1;
        let end = CancellationToken::new();
        template.set(Stage::BeingMade(end.clone()));
        if template.takes.is_zero() {
            template.set(Stage::Running(end));
            return;
        }
        let (engine, takes, number) = (self.clone(), template.takes, template.begun);
        self.tasks.spawn(async move {
            tokio::time::sleep(takes).await;
            let template = &mut engine.books().template;
            // It may have been ended or forgotten.
            if template.begun == number && matches!(template.stage, Stage::BeingMade(_)) {
                template.set(Stage::Running(end));
            }
        });
    }

    /// A caller that waits with a program gets a fork of the template that runs; a spare one waits until there is one.
    pub(super) async fn fork_template(
        &self,
        name: &SandboxName,
        spec: &SandboxSpec,
        fork: Fork,
    ) -> Result<Forked, EngineError> {
        let call = Call::Preload;
        if self.forking() == Forking::Never {
            return Ok(Forked::No(None));
        }
        if matches!(fork, Fork::Spare { .. }) {
            self.make_template();
        }
        if matches!(fork, Fork::Kernel { .. }) {
            let mut books = self.books();
            books.sandboxes.entry(name.clone()).or_default().awaits_kernel = true;
        }
        let (stage, mut changed) = {
            let template = &self.books().template;
            (template.stage.clone(), template.changed.subscribe())
        };
        let ended = async {
            match stage {
                Stage::Running(end) => end.cancelled_owned().await,
                Stage::Missing | Stage::BeingMade(_) => std::future::pending().await,
            }
        };
        let flight = tokio::select! {
            biased;
            flight = self.answer(call, Some(name)) => flight?,
            () = ended => {
                return Err(refused(call, "it has ended"));
            }
        };
        while matches!(fork, Fork::Spare { .. })
            && matches!(self.books().template.stage, Stage::BeingMade(_))
        {
            // The sender is in the books.
            let _ = changed.changed().await;
        }
        let (is_running, forking) = (self.has_template(), self.forking());
        let is_spare = matches!(fork, Fork::Spare { .. });
        if !is_running || forking == Forking::Refused {
            flight.land();
            return Ok(Forked::No(is_spare.then(|| "it does not fork".to_owned())));
        }
        flight.land_with(|record| {
            has_processes(record)?;
            record.untold_forks += 1;
            Ok(())
        })?;
        let template = &mut self.books().template;
        template.forks += 1;
        Ok(Forked::Yes { modules: template.modules(spec, &fork) })
    }
}
