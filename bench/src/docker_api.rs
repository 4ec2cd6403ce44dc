//! What users do without Isolator: the same work through the plain API of the same Docker engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, LogsOptionsBuilder, UploadToContainerOptionsBuilder,
    WaitContainerOptions,
};
use futures_util::{StreamExt, TryStreamExt};
use isolator_pool::engine::docker::{EngineAddress, connect};
use isolator_pool::engine::instance::Instance;
use isolator_pool::engine::{Call, Engine, SandboxName, bounded};
use tokio_util::task::TaskTracker;

use crate::error::BenchError;
use crate::target::Target;
use crate::workload::Workload;

/// The client of the plain API. Its containers carry the labels of this process, so that what it
/// can't remove is swept as a dead server's sandboxes are.
pub struct RawDocker {
    docker: Docker,
    engine: Arc<dyn Engine>,
    instance: Arc<Instance>,
    next_number: AtomicU64,
    /// Containers are made in tasks of their own: the container of a sample that is given up half-way must
    /// be there before all are removed.
    makers: TaskTracker,
}

impl RawDocker {
    /// Connects to the engine of `target`, which is at `address`.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn connect(address: &EngineAddress, target: &Target) -> Result<Self, BenchError> {
        Ok(Self {
            docker: bounded(Call::Check, connect(address)).await?,
            engine: Arc::clone(&target.engine),
            instance: Arc::clone(&target.instance),
            next_number: AtomicU64::new(1),
            makers: TaskTracker::new(),
        })
    }

    /// A container for the request: create, upload, start, wait, logs. Removing it is not counted.
    ///
    /// # Errors
    ///
    /// The engine's, or that the program did not do what it should. The container may be left then.
    pub async fn cold(&self, workload: &Workload) -> Result<Duration, BenchError> {
        let began = Instant::now();
        let name = self.create(workload, workload.argv.clone()).await?;
        self.upload(&name, workload).await?;
        self.start(&name).await?;
        let waited = self.docker.wait_container(name.as_str(), None::<WaitContainerOptions>);
        let waited: Vec<_> = waited.collect().await;
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let logs = self.docker.logs(name.as_str(), Some(options)).try_collect::<Vec<_>>().await;
        let took = began.elapsed();

        let output: String =
            logs.map_err(BenchError::docker("read the logs"))?.iter().map(to_string).collect();
        let mut code = 0;
        for ended in waited {
            code = match ended {
                Ok(ended) => ended.status_code,
                // The client library takes a program that failed for an error.
                Err(Error::DockerContainerWaitError { code, .. }) => code,
                Err(error) => return Err(BenchError::docker("wait for the end")(error)),
            };
        }
        check(workload, &output, Some(code))?;
        self.remove(&name).await?;
        Ok(took)
    }

    /// A paused container from a pool, used the obvious way: unpause, upload, exec, inspect.
    /// Making it ready and removing it are not counted.
    ///
    /// # Errors
    ///
    /// As [`Self::cold`].
    pub async fn naive_warm(&self, workload: &Workload) -> Result<Duration, BenchError> {
        let waiting = vec!["sleep".to_owned(), "600".to_owned()];
        let name = self.create(workload, waiting).await?;
        self.start(&name).await?;
        let paused = self.docker.pause_container(name.as_str()).await;
        paused.map_err(BenchError::docker("pause a container"))?;

        let began = Instant::now();
        let thawed = self.docker.unpause_container(name.as_str()).await;
        thawed.map_err(BenchError::docker("unpause a container"))?;
        self.upload(&name, workload).await?;
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(workload.argv.clone()),
            ..CreateExecOptions::default()
        };
        let exec = self.docker.create_exec(name.as_str(), options).await;
        let exec = exec.map_err(BenchError::docker("make an exec"))?.id;
        let started = self.docker.start_exec(&exec, None).await;
        let output = match started.map_err(BenchError::docker("start an exec"))? {
            StartExecResults::Attached { output, .. } => output.try_collect::<Vec<_>>().await,
            StartExecResults::Detached => Ok(Vec::new()),
        };
        let inspected = self.docker.inspect_exec(&exec).await;
        let took = began.elapsed();

        let output = output.map_err(BenchError::docker("read the output of an exec"))?;
        let output: String = output.iter().map(to_string).collect();
        let inspected = inspected.map_err(BenchError::docker("tell an exec's exit code"))?;
        check(workload, &output, inspected.exit_code)?;
        self.remove(&name).await?;
        Ok(took)
    }

    /// Waits until no container is being made any more.
    pub async fn finish(&self) {
        self.makers.close();
        self.makers.wait().await;
    }

    async fn create(
        &self,
        workload: &Workload,
        command: Vec<String>,
    ) -> Result<SandboxName, BenchError> {
        let name = self.instance.sandbox_name(self.next_number.fetch_add(1, Ordering::Relaxed));
        let options = CreateContainerOptionsBuilder::new().name(name.as_str()).build();
        let body = self.body(workload, command);
        let docker = self.docker.clone();
        let making =
            self.makers.spawn(async move { docker.create_container(Some(options), body).await });
        let made = making.await.unwrap_or_else(|error| Err(std::io::Error::from(error).into()));
        made.map_err(BenchError::docker("create a container"))?;
        Ok(name)
    }

    /// The limits are those of the language's sandboxes. What the plain API has no use for is left
    /// out: files in memory and a read-only root, because an upload reaches neither; a seccomp
    /// profile; a log driver that keeps nothing, because the output comes from the log.
    fn body(&self, workload: &Workload, command: Vec<String>) -> ContainerCreateBody {
        let spec = &workload.sandbox;
        let (uid, gid) = spec.user;
        let env = workload.env.iter().map(|(name, value)| format!("{name}={value}"));
        ContainerCreateBody {
            image: Some(spec.image.name.clone()),
            // Some images have none, and then the command is needed.
            entrypoint: Some(command),
            cmd: Some(Vec::new()),
            user: Some(format!("{uid}:{gid}")),
            env: Some(env.collect()),
            working_dir: Some(spec.workdir.clone()),
            labels: Some(self.instance.labels().clone().into_iter().collect()),
            host_config: Some(HostConfig {
                network_mode: Some(spec.network.clone()),
                memory: Some(spec.resources.memory.as_i64()),
                memory_swap: Some(spec.resources.memory.as_i64()),
                nano_cpus: Some(spec.resources.cpu.as_nano_cpus()),
                pids_limit: Some(i64::from(spec.limits.pids)),
                cap_drop: Some(spec.cap_drop.clone()),
                security_opt: Some(vec!["no-new-privileges".to_owned()]),
                runtime: spec.runtime.clone(),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    async fn upload(&self, name: &SandboxName, workload: &Workload) -> Result<(), BenchError> {
        let workdir = &workload.sandbox.workdir;
        let options = UploadToContainerOptionsBuilder::new().path(workdir).build();
        let tar = bollard::body_full(workload.workspace.tar().to_vec().into());
        let uploaded = self.docker.upload_to_container(name.as_str(), Some(options), tar).await;
        uploaded.map_err(BenchError::docker("upload a file"))
    }

    async fn start(&self, name: &SandboxName) -> Result<(), BenchError> {
        let started = self.docker.start_container(name.as_str(), None).await;
        started.map_err(BenchError::docker("start a container"))
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), BenchError> {
        Ok(bounded(Call::Remove, self.engine.remove(name)).await?)
    }
}

fn to_string(piece: &bollard::container::LogOutput) -> String {
    piece.to_string()
}

/// Whether a program did what it should.
fn check(workload: &Workload, output: &str, code: Option<i64>) -> Result<(), BenchError> {
    let expected = workload.program.prints;
    if output == expected && code == Some(0) {
        return Ok(());
    }
    let printed = match code {
        Some(0) => output.to_owned(),
        Some(code) => format!("{output}(exit code {code})"),
        None => format!("{output}(no exit code)"),
    };
    Err(BenchError::Output { program: workload.label(), printed, expected })
}
