//! What users do without Isolator: the same work through the raw API of the same Docker engine.

use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder, WaitContainerOptions,
};
use futures_util::{StreamExt, TryStreamExt};

use super::Program;

/// The client of the raw API.
pub(super) struct RawDocker(Docker);

impl RawDocker {
    pub(super) async fn connect() -> Self {
        let docker = Docker::connect_with_defaults().expect("a Docker engine");
        Self(docker.negotiate_version().await.expect("a Docker engine that answers"))
    }

    fn body(program: &Program, command: Vec<String>) -> ContainerCreateBody {
        ContainerCreateBody {
            image: Some(program.image.to_owned()),
            // Some images have none, and then the command is needed.
            entrypoint: Some(command),
            working_dir: Some("/workspace".to_owned()),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                memory: Some(program.memory_mib << 20),
                nano_cpus: Some(program.nano_cpus),
                pids_limit: Some(64),
                cap_drop: Some(vec!["ALL".to_owned()]),
                security_opt: Some(vec!["no-new-privileges".to_owned()]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    async fn create(&self, program: &Program, command: Vec<String>) -> String {
        let body = Self::body(program, command);
        let created = self.0.create_container(None::<CreateContainerOptions>, body).await;
        created.expect("a container").id
    }

    async fn upload(&self, id: &str, program: &Program) {
        let options = UploadToContainerOptionsBuilder::new().path("/workspace").build();
        let tar = bollard::body_full(program.tar().into());
        self.0.upload_to_container(id, Some(options), tar).await.expect("the upload");
    }

    async fn remove(&self, id: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        self.0.remove_container(id, Some(options)).await.expect("the removal");
    }

    /// A container for the request: create, upload, start, wait, logs. Removing it is not counted.
    pub(super) async fn cold(&self, program: &Program) -> Duration {
        let began = Instant::now();
        let id = self.create(program, program.command()).await;
        self.upload(&id, program).await;
        self.0.start_container(&id, None).await.expect("the start");
        let ended: Vec<_> =
            self.0.wait_container(&id, None::<WaitContainerOptions>).collect().await;
        assert!(ended[0].is_ok(), "{ended:?}");
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let logs: Vec<_> = self.0.logs(&id, Some(options)).try_collect().await.expect("the logs");
        let took = began.elapsed();
        let output: String = logs.iter().map(ToString::to_string).collect();
        assert_eq!(output, program.prints);
        self.remove(&id).await;
        took
    }

    /// A paused container from a pool, used the obvious way: unpause, upload, exec, inspect.
    /// Making it ready and removing it are not counted.
    pub(super) async fn naive_warm(&self, program: &Program) -> Duration {
        let waiting = vec!["sleep".to_owned(), "600".to_owned()];
        let id = self.create(program, waiting).await;
        self.0.start_container(&id, None).await.expect("the start");
        self.0.pause_container(&id).await.expect("the pause");

        let began = Instant::now();
        self.0.unpause_container(&id).await.expect("the unpause");
        self.upload(&id, program).await;
        let options = CreateExecOptions::<String> {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(program.command()),
            ..CreateExecOptions::default()
        };
        let exec = self.0.create_exec(&id, options).await.expect("the exec").id;
        let StartExecResults::Attached { output, .. } =
            self.0.start_exec(&exec, None).await.expect("the start of the exec")
        else {
            panic!("the exec is attached");
        };
        let output: Vec<_> = output.try_collect().await.expect("the output");
        let inspected = self.0.inspect_exec(&exec).await.expect("the exit code");
        let took = began.elapsed();
        let output: String = output.iter().map(ToString::to_string).collect();
        assert_eq!((output.as_str(), inspected.exit_code), (program.prints, Some(0)));
        self.remove(&id).await;
        took
    }
}
