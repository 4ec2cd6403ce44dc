//! The calls of the fake engine: what each does, and the rules for asking for it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use isolator_pool::engine::limits::{LimitKind, Resources};
use isolator_pool::engine::preload::{AwaitedFork, Fork, Forked};
use isolator_pool::engine::{
    Call, Channel, Engine, EngineError, Image, LabelFilter, ListedSandbox, Progress, SandboxName,
    SandboxSpec, SandboxState, Unsupported, Warning, refused,
};
use isolator_pool::packages::PackageSet;
use tokio::io::AsyncReadExt;

use super::*;

/// The fault in asking for `call` now, if there is one.
pub(super) fn breach(call: Call, record: &Record) -> Option<String> {
    if let Some(other) = record.in_flight {
        return Some(format!("while {other:?} is under way"));
    }
    if call == Call::Remove {
        return None;
    }
    if record.removing {
        return Some("after its removal".to_owned());
    }
    // An ended sandbox can be asked for its state, also while another call is under way.
    let has_ended = !matches!(record.state, SandboxState::Running | SandboxState::Paused);
    if record.given_up && !(call == Call::State && has_ended) {
        return Some("after a call that failed or was given up".to_owned());
    }
    match call {
        Call::Create if record.exists() => Some("twice".to_owned()),
        Call::Arm if record.armed => Some("twice".to_owned()),
        Call::Pause | Call::Resume if !record.ready => Some("before it was ready".to_owned()),
        Call::Preload if !record.ready => Some("before it was ready".to_owned()),
        Call::Preload if record.state == SandboxState::Paused => Some("while paused".to_owned()),
        Call::Preload if record.jobs > 0 && !record.awaits_kernel => {
            Some("with a job in it".to_owned())
        }
        Call::Pause if record.cell_runs == Some(true) => Some("while a cell ran".to_owned()),
        Call::Pause | Call::Resume if record.cell_runs.is_some() => None,
        Call::Pause if record.jobs > 0 => Some("with a job in it".to_owned()),
        // A job may be on its way before the engine hears of the call.
        Call::Resume if record.jobs > 0 && !record.awaits_thaw => {
            Some("with a job in it".to_owned())
        }
        _ => None,
    }
}

pub(super) fn end(record: &mut Record, state: SandboxState) {
    record.state = state;
    record.end.cancel();
}

/// A call under way. Dropped before it has landed, it has failed or was given up.
pub(super) struct Flight {
    pub(super) engine: FakeEngine,
    pub(super) call: Call,
    pub(super) name: Option<SandboxName>,
    pub(super) landed: bool,
}

impl Flight {
    /// Ends the call well, together with what it changes.
    pub(super) fn land(mut self) {
        self.landed = true;
    }

    /// Ends the call on a sandbox, together with what it changes; if that is an error, the call
    /// has failed.
    pub(super) fn land_with<T>(
        mut self,
        change: impl FnOnce(&mut Record) -> Result<T, &'static str>,
    ) -> Result<T, EngineError> {
        let name = self.name.clone().expect("a call on a sandbox");
        let changed = change(self.engine.books().sandboxes.entry(name).or_default());
        self.landed = changed.is_ok();
        let call = self.call;
        changed.map_err(|cause| refused(call, cause))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut books = self.engine.books();
        books.in_flight[self.call as usize] -= 1;
        if let Some(record) = self.name.as_ref().and_then(|name| books.sandboxes.get_mut(name)) {
            record.in_flight = None;
            // Freezing a session is tried again.
            let is_tried_again = self.call == Call::Pause && record.cell_runs.is_some();
            let is_for_kernel = self.call == Call::Preload && record.awaits_kernel;
            record.given_up |= !(self.landed || is_tried_again || is_for_kernel);
            record.fork_lost |= self.call == Call::Preload && !self.landed && !is_for_kernel;
        }
    }
}

pub(super) fn has_processes(record: &Record) -> Result<(), &'static str> {
    match record.state {
        SandboxState::Running | SandboxState::Paused => Ok(()),
        SandboxState::Stopped | SandboxState::Ended | SandboxState::Gone => {
            Err("there is no such process")
        }
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn check(&self) -> Result<String, EngineError> {
        self.answer(Call::Check, None).await?.land();
        Ok("fake".to_owned())
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        Ok(Vec::new())
    }

    fn supports(&self, _: &SandboxSpec) -> Result<(), Unsupported> {
        Ok(())
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        Vec::new()
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), EngineError> {
        let flight = self.answer(Call::Prepare, None).await?;
        self.books().prepared.insert(spec.image.digest.clone());
        flight.land();
        Ok(())
    }

    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        self.answer(Call::FindImage, None).await?.land();
        Ok(self.books().images.get(name).cloned())
    }

    async fn pull_image(&self, name: &str, _: Progress<'_>) -> Result<(), EngineError> {
        self.books().pulls += 1;
        let flight = self.answer(Call::FetchImage, None).await?;
        if !self.books().registry.contains(name) {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        }
        self.store(name);
        flight.land();
        Ok(())
    }

    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        let flight = self.answer(Call::Create, Some(name)).await?;
        if !self.books().images.values().any(|image| image.digest == spec.image.digest) {
            return Err(EngineError::NoSuchImage(spec.image.name.clone()));
        }
        if !self.books().prepared.contains(&spec.image.digest) {
            self.note(format!("{name} was created before {} was prepared", spec.image.name));
        }
        self.appear(name);
        flight.land();
        Ok(())
    }

    fn asked_for(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: &AwaitedFork) {
        self.make_template();
    }

    fn can_fork(&self, _: &SandboxName, _: &Arc<SandboxSpec>, fork: &AwaitedFork) -> bool {
        self.books().template.suits(fork)
    }

    fn can_fork_kernel(
        &self,
        _: &SandboxName,
        _: &Arc<SandboxSpec>,
        _with_modules: bool,
    ) -> Option<String> {
        self.has_template().then(|| KERNEL_VERSION.to_owned())
    }

    fn kernel_not_ready(
        &self,
        _: &SandboxName,
        _: &Arc<SandboxSpec>,
        _with_modules: bool,
        _: &str,
    ) {
        self.give_up_template();
    }

    async fn fork(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        fork: Fork,
    ) -> Result<Forked, EngineError> {
        self.fork_template(name, spec, fork).await
    }

    fn not_ready(&self, _: &SandboxName, _: &Arc<SandboxSpec>, _: &[String], _: &str) {
        self.give_up_template();
    }

    async fn provide(&self, _: &PackageSet, _: &Image) -> Result<(), EngineError> {
        self.answer(Call::Provide, None).await?.land();
        Ok(())
    }

    fn missed(&self, set: &PackageSet) {
        self.books().missed.push(set.hash.clone());
    }

    async fn bind(&self, _: &SandboxName, set: &Arc<PackageSet>) -> Result<String, EngineError> {
        self.answer(Call::Bind, None).await?.land();
        Ok(format!("/sets/{}", set.hash))
    }

    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError> {
        let flight = self.answer(Call::Arm, Some(name)).await?;
        let park = self.books().park;
        let end = flight.land_with(|record| {
            has_processes(record)?;
            record.armed = true;
            Ok(record.end.clone())
        })?;
        let (server, inside) = tokio::io::duplex(PIPE);
        let runner = Runner {
            engine: self.clone(),
            name: name.clone(),
            stream: inside,
            agent: Default::default(),
        };
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                _ = runner.live(park) => {}
            }
        });
        let (output, input) = tokio::io::split(server);
        let output = futures_util::stream::unfold(output, async |mut output| {
            let mut piece = vec![0; PIPE];
            let read = output.read(&mut piece).await.unwrap_or(0);
            piece.truncate(read);
            (read > 0).then(|| (Ok(Bytes::from(piece)), output))
        });
        Ok(Channel { input: Box::new(input), output: output.boxed() })
    }

    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Pause, Some(name)).await?;
        flight.land_with(|record| {
            has_processes(record)?;
            record.state = SandboxState::Paused;
            Ok(())
        })
    }

    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Resume, Some(name)).await?;
        flight.land_with(|record| {
            has_processes(record)?;
            record.state = SandboxState::Running;
            Ok(())
        })
    }

    async fn update(
        &self,
        name: &SandboxName,
        resources: Resources,
        processes: u32,
    ) -> Result<(), EngineError> {
        self.answer(Call::Update, Some(name)).await?.land_with(|record| has_processes(record))?;
        self.books().updates.push((resources.memory.as_bytes(), processes));
        Ok(())
    }

    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError> {
        self.answer(Call::State, Some(name)).await?.land_with(|record| Ok(record.state))
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError> {
        let flight = self.answer(Call::Remove, Some(name)).await?;
        let existed = flight.land_with(|record| {
            let existed = record.exists();
            end(record, SandboxState::Gone);
            Ok(existed)
        })?;
        self.books().removed += usize::from(existed);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        self.answer(Call::List, None).await?.land();
        let books = self.books();
        let found = books.sandboxes.iter().filter(|(_, record)| record.exists());
        Ok(found
            .map(|(name, _)| ListedSandbox { name: name.clone(), labels: self.labels.clone() })
            .collect())
    }

    async fn sweep_shared(&self, _: LabelFilter<'_>) -> Result<usize, EngineError> {
        self.answer(Call::Sweep, None).await?.land();
        Ok(0)
    }
}
