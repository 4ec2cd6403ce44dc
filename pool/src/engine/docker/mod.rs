//! The engine `docker`: sandboxes are containers of a Docker engine, or of Podman, which speaks the same API.

mod connect;
mod container;
mod dialect;
mod error;
mod facts;
mod helper;
mod images;
mod packages;
mod set_archive;
mod volume;

use std::collections::HashMap;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::models::{ContainerState, ContainerStateStatusEnum, ContainerUpdateBody};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StatsOptionsBuilder,
};
use futures_util::{StreamExt, TryStreamExt};
use isolator_runner::wire::RUNNER_ENDED;
use tokio::sync::OnceCell;

pub use self::connect::{ConnectError, EngineAddress, connect};
use self::container::Volumes;
use self::dialect::DialectProbe;
use self::error::translate;
use self::helper::Helpers;
pub use self::images::ImageBuild;
use self::packages::PackagesVolume;
use self::volume::RunnerVolume;
use crate::engine::instance::{Instance, LABEL};
use crate::engine::limits::{LimitKind, Resources};
use crate::engine::runner_log::RunnerLog;
pub use crate::engine::seccomp::docker_profile;
use crate::engine::{
    Call, Channel, Engine, EngineError, Facts, Image, LabelFilter, Labels, ListedSandbox, Progress,
    SandboxName, SandboxSpec, SandboxState, Unsupported, Warning, refused,
};
use crate::packages::PackageSet;

/// How often a pause is tried, and the time between attempts. The freezer gives up, and thaws everything,
/// when a process gets no CPU time for a while.
const PAUSE_ATTEMPTS: u32 = 4;
const PAUSE_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How often, and at what interval, to check whether a container that another client removes is gone.
const GONE_CHECKS: u32 = 40;
const GONE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Exit code of a container whose process 1 was killed by SIGKILL.
const KILLED: i64 = 137;

/// A connection to a Docker engine.
pub struct DockerEngine {
    /// Opened by the first call that reaches the engine, so the server may start before the engine does.
    docker: OnceCell<Docker>,
    dialect: DialectProbe,
    address: EngineAddress,
    /// The address, as shown in errors.
    shown: String,
    labels: Labels,
    runner: RunnerVolume,
    packages: PackagesVolume,
    helpers: Helpers,
    /// Asked before the first container is made.
    unenforced: OnceCell<Vec<LimitKind>>,
}

impl DockerEngine {
    /// An engine at an address; the first call connects. `runner` is the static binary that waits
    /// in every sandbox; it reaches them on a volume of this instance, filled when the first
    /// sandbox is made.
    pub fn new(address: EngineAddress, instance: &Instance, runner: &'static [u8]) -> Self {
        Self {
            docker: OnceCell::new(),
            dialect: DialectProbe::new(instance, &address),
            shown: address.to_string(),
            address,
            labels: instance.labels().clone(),
            runner: RunnerVolume::new(instance, runner),
            packages: PackagesVolume::new(instance),
            helpers: Helpers::new(instance),
            unenforced: OnceCell::new(),
        }
    }

    /// Where the engine is.
    pub fn address(&self) -> &EngineAddress {
        &self.address
    }

    async fn docker(&self) -> Result<&Docker, EngineError> {
        self.docker.get_or_try_init(|| connect::connect(&self.address)).await
    }

    fn all_labels(&self) -> HashMap<String, String> {
        self.labels.clone().into_iter().collect()
    }

    /// The limits that the daemon can't enforce, such as a rootless one without delegated control groups.
    async fn ask_for_limits(&self) -> Result<&[LimitKind], EngineError> {
        let ask = async || {
            let info = self.docker().await?.info().await;
            let info = info.map_err(self.failed(Call::Create))?;
            let limits = [
                (LimitKind::Memory, info.memory_limit),
                (LimitKind::Cpu, info.cpu_cfs_quota),
                (LimitKind::Processes, info.pids_limit),
            ];
            let missing = limits.into_iter().filter(|(_, is_enforced)| *is_enforced == Some(false));
            let missing: Vec<_> = missing.map(|(kind, _)| kind).collect();
            if !missing.is_empty() {
                tracing::warn!("Docker can't limit {}", LimitKind::list(&missing));
            }
            Ok(missing)
        };
        self.unenforced.get_or_try_init(ask).await.map(Vec::as_slice)
    }

    /// Translates errors of a call.
    fn failed(&self, call: Call) -> impl Fn(bollard::errors::Error) -> EngineError {
        move |error| translate(call, &self.shown, error)
    }
}

#[async_trait]
impl Engine for DockerEngine {
    /// Always: only the daemon knows the names of networks and runtimes. It refuses the first sandbox if one is
    /// wrong.
    fn supports(&self, _: &SandboxSpec) -> Result<(), Unsupported> {
        Ok(())
    }

    fn advice_when_busy(&self) -> Option<&'static str> {
        Some(
            "This server makes its sandboxes with Docker; with engine.kind \"embedded\" it can make ten times as many.",
        )
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        self.unenforced.get().cloned().unwrap_or_default()
    }

    async fn check(&self) -> Result<String, EngineError> {
        let version = self.docker().await?.version().await.map_err(self.failed(Call::Check))?;
        let components = version.components.unwrap_or_default();
        let kind = if dialect::is_podman(&components) { "Podman" } else { "Docker Engine" };
        Ok(format!(
            "{kind} {}, API {}, at {}",
            version.version.unwrap_or_default(),
            version.api_version.unwrap_or_default(),
            self.shown,
        ))
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        let failed = self.failed(Call::Check);
        let docker = self.docker().await?;
        let warnings = docker.info().await.map_err(&failed)?.warnings;
        let warning = |what| Warning::new(what, "see the engine's documentation");
        Ok(warnings.unwrap_or_default().into_iter().map(warning).collect())
    }

    async fn facts(&self) -> Result<Facts, EngineError> {
        let failed = self.failed(Call::Check);
        let docker = self.docker().await?;
        let info = docker.info().await.map_err(&failed)?;
        let version = docker.version().await.map_err(&failed)?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(facts::facts(&self.address, info, version, kernel.trim()))
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), EngineError> {
        self.runner.fill(self, &spec.image).await?;
        match spec.packages {
            Some(_) => self.packages.begin(self, &spec.image).await,
            None => Ok(()),
        }
    }

    async fn find_image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        images::find(self, name).await
    }

    async fn pull_image(&self, name: &str, progress: Progress<'_>) -> Result<(), EngineError> {
        images::pull(self, name, progress).await
    }

    async fn create(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        let unenforced = self.ask_for_limits().await?;
        if !unenforced.is_empty() && !spec.allow_unlimited {
            let why = "Docker has no control groups for it (see `docker info`)".to_owned();
            let unenforced = unenforced.to_vec();
            let unsupported = Unsupported::WithoutLimits { unenforced, why };
            return Err(EngineError::Unusable(unsupported.into()));
        }
        // Only the image is looked up here, so a 404 is about the image.
        let of_image = |error| match error {
            EngineError::Refused { cause, .. } if error::is_no_such_image(&cause.to_string()) => {
                EngineError::NoSuchImage(spec.image.name.clone())
            }
            other => other,
        };
        let failed = self.failed(Call::Create);
        let options = CreateContainerOptionsBuilder::new().name(name.as_str()).build();
        let dialect = self.dialect.dialect(self.docker().await?).await?;
        let volumes =
            Volumes { runner: self.runner.volume.name(), packages: self.packages.volume.name() };
        let body = container::body(spec, volumes, self.all_labels(), dialect);
        let created = self.docker().await?.create_container(Some(options), body).await;
        created.map(drop).map_err(|error| of_image(failed(error)))
    }

    async fn provide(&self, set: &PackageSet, image: &Image) -> Result<(), EngineError> {
        self.packages.provide(self, set, image).await
    }

    async fn withdraw(&self, hash: &str) -> Result<(), EngineError> {
        self.packages.withdraw(self, hash).await
    }

    async fn bind(&self, _: &SandboxName, set: &Arc<PackageSet>) -> Result<String, EngineError> {
        self.packages.path(set).ok_or_else(|| {
            refused(Call::Bind, "the set is not in the volume of this server anymore")
        })
    }

    fn missed(&self, set: &PackageSet) {
        self.packages.forget(set);
    }

    /// Opens the container's streams before it starts: otherwise the runner's first output would be lost.
    async fn arm(&self, name: &SandboxName) -> Result<Channel, EngineError> {
        let docker = self.docker().await?;
        let options = AttachContainerOptionsBuilder::new();
        let options = options.stream(true).stdin(true).stdout(true).stderr(true).build();
        let attached = docker.attach_container(name.as_str(), Some(options)).await;
        let AttachContainerResults { output, input } = attached.map_err(self.failed(Call::Arm))?;
        let started = docker.start_container(name.as_str(), None).await;
        started.map_err(self.failed(Call::Create))?;
        let address = self.shown.clone();
        let mut log = RunnerLog::new(name.clone());
        let output = output
            .map_err(move |error| translate(Call::Arm, &address, error))
            .try_filter_map(move |piece| ready(Ok(standard_output(&mut log, piece))))
            .boxed();
        Ok(Channel { input: Box::new(input), output })
    }

    async fn pause(&self, name: &SandboxName) -> Result<(), EngineError> {
        let docker = self.docker().await?;
        let mut tries = 1;
        let error = loop {
            match docker.pause_container(name.as_str()).await {
                Ok(()) => return Ok(()),
                Err(error) if tries < PAUSE_ATTEMPTS && error::status(&error) == Some(500) => {
                    tracing::debug!(sandbox = %name, %error, "could not pause the sandbox, trying again");
                    tries += 1;
                    tokio::time::sleep(PAUSE_RETRY_INTERVAL).await;
                }
                Err(error) => break error,
            }
        };
        self.unless_in_state(name, SandboxState::Paused, Call::Pause, error).await
    }

    async fn resume(&self, name: &SandboxName) -> Result<(), EngineError> {
        let Err(error) = self.docker().await?.unpause_container(name.as_str()).await else {
            return Ok(());
        };
        self.unless_in_state(name, SandboxState::Running, Call::Resume, error).await
    }

    async fn update(
        &self,
        name: &SandboxName,
        resources: Resources,
        processes: u32,
    ) -> Result<(), EngineError> {
        let body = ContainerUpdateBody {
            memory: Some(resources.memory.as_i64()),
            memory_swap: Some(resources.memory.as_i64()),
            nano_cpus: Some(resources.cpu.as_nano_cpus()),
            pids_limit: Some(processes.into()),
            ..ContainerUpdateBody::default()
        };
        let updated = self.docker().await?.update_container(name.as_str(), body).await;
        updated.map_err(self.failed(Call::Update))
    }

    async fn used_memory(&self, name: &SandboxName) -> Result<Option<u64>, EngineError> {
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let docker = self.docker().await?;
        let mut stats = pin!(docker.stats(name.as_str(), Some(options)));
        let stats = stats.next().await.transpose();
        let stats = stats.map_err(self.failed(Call::UsedMemory))?;
        Ok(stats.and_then(|stats| stats.memory_stats?.usage))
    }

    async fn state(&self, name: &SandboxName) -> Result<SandboxState, EngineError> {
        let inspected = match self.docker().await?.inspect_container(name.as_str(), None).await {
            Ok(inspected) => inspected,
            Err(error) if error::status(&error) == Some(404) => return Ok(SandboxState::Gone),
            Err(error) => return Err(self.failed(Call::State)(error)),
        };
        Ok(state_of(&inspected.state.unwrap_or_default()))
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match self.docker().await?.remove_container(name.as_str(), Some(options)).await {
            Err(error) if error::status(&error) == Some(404) => Ok(()),
            // Another client is removing it, and it is not gone yet.
            Err(error) if error::status(&error) == Some(409) => {
                self.wait_until_gone(name, error).await
            }
            removed => removed.map_err(self.failed(Call::Remove)),
        }
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        let filters = HashMap::from([("label", vec![LABEL])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let containers = self.docker().await?.list_containers(Some(options)).await;
        let containers = containers.map_err(self.failed(Call::List))?;
        Ok(containers
            .into_iter()
            .filter_map(|container| {
                // Names come with a slash in front; a container that is being removed has none.
                let name = container.names?.into_iter().next()?;
                let name = SandboxName::new(name.trim_start_matches('/'));
                if self.helpers.contains(&name) {
                    return None;
                }
                Some(ListedSandbox { name, labels: container.labels?.into_iter().collect() })
            })
            .collect())
    }

    async fn sweep_shared(&self, dead: LabelFilter<'_>) -> Result<usize, EngineError> {
        volume::sweep(self, dead).await
    }
}

impl DockerEngine {
    async fn wait_until_gone(
        &self,
        name: &SandboxName,
        error: bollard::errors::Error,
    ) -> Result<(), EngineError> {
        for _ in 0..GONE_CHECKS {
            if self.state(name).await? == SandboxState::Gone {
                return Ok(());
            }
            tokio::time::sleep(GONE_CHECK_INTERVAL).await;
        }
        Err(self.failed(Call::Remove)(error))
    }

    /// Succeeds if the container is already in the wanted state: engines answer a pause of a paused container,
    /// and a resume of a running one, with different errors.
    async fn unless_in_state(
        &self,
        name: &SandboxName,
        wanted: SandboxState,
        call: Call,
        error: bollard::errors::Error,
    ) -> Result<(), EngineError> {
        if matches!(error::status(&error), Some(409 | 500)) && self.state(name).await? == wanted {
            return Ok(());
        }
        Err(self.failed(call)(error))
    }
}

/// The state of a container that exists.
fn state_of(state: &ContainerState) -> SandboxState {
    match (state.status, state.exit_code) {
        (_, Some(code)) if has_ended(state) && code == i64::from(RUNNER_ENDED) => {
            SandboxState::Ended
        }
        // When all memory is in files of no process, the kernel may choose process 1.
        (_, Some(KILLED)) if has_ended(state) && state.oom_killed == Some(true) => {
            SandboxState::Ended
        }
        // A container that was restarted has lost its runner.
        _ if has_ended(state) => SandboxState::Stopped,
        (Some(ContainerStateStatusEnum::RUNNING), _) => SandboxState::Running,
        (Some(ContainerStateStatusEnum::PAUSED), _) => SandboxState::Paused,
        _ => SandboxState::Stopped,
    }
}

/// Whether a container's process 1 has ended, now or before a restart. While it runs for the first time, the
/// engine gives the year 1 as the time of its end.
fn has_ended(state: &ContainerState) -> bool {
    state.finished_at.as_ref().is_some_and(|at| !at.is_empty() && !at.starts_with("0001-"))
}

/// Returns the runner's standard output, which carries its frames; its standard error goes to the log.
fn standard_output(log: &mut RunnerLog, piece: LogOutput) -> Option<bytes::Bytes> {
    match piece {
        LogOutput::StdOut { message } => Some(message),
        LogOutput::StdErr { message } => {
            log.pass_on(&message);
            None
        }
        LogOutput::StdIn { .. } | LogOutput::Console { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_ended_by_itself_if_the_runner_ended_or_memory_ran_out() {
        let ended = |exit_code, oom_killed| ContainerState {
            status: Some(ContainerStateStatusEnum::EXITED),
            finished_at: Some("2025-01-01T00:00:00Z".to_owned()),
            exit_code: Some(exit_code),
            oom_killed: Some(oom_killed),
            ..ContainerState::default()
        };
        assert_eq!(state_of(&ended(RUNNER_ENDED.into(), false)), SandboxState::Ended);
        assert_eq!(state_of(&ended(KILLED, true)), SandboxState::Ended);
        assert_eq!(state_of(&ended(KILLED, false)), SandboxState::Stopped);
        assert_eq!(state_of(&ended(0, true)), SandboxState::Stopped);
        let running = ContainerState {
            status: Some(ContainerStateStatusEnum::RUNNING),
            finished_at: Some("0001-01-01T00:00:00Z".to_owned()),
            oom_killed: Some(true),
            ..ContainerState::default()
        };
        assert_eq!(state_of(&running), SandboxState::Running);
    }
}
