//! Reads the state of a Docker engine, over a connection of the test's own.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum,
    ImageInspect,
};
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder, TagImageOptionsBuilder,
};

use super::{Engine, Kind, Limits, Sandbox, State};

/// The label whose value is the instance.
const LABEL: &str = "isolator.instance";

/// The label that tells the process: its namespace, its number, its start.
const PROCESS: &str = "isolator.process";

type Labels = HashMap<String, String>;

pub(crate) struct Bystander {
    docker: Docker,
}

impl Bystander {
    pub(crate) async fn new() -> Self {
        let docker = Docker::connect_with_defaults().expect("a container engine");
        Self { docker: docker.negotiate_version().await.expect("a container engine that answers") }
    }

    /// Everything the engine knows of a container.
    pub(crate) async fn inspect(&self, container: &str) -> ContainerInspectResponse {
        self.docker.inspect_container(container, None).await.expect("the container")
    }

    /// Everything the engine knows of an image.
    pub(crate) async fn image(&self, name: &str) -> ImageInspect {
        self.docker.inspect_image(name).await.expect("the image")
    }

    /// Whether a process has a container.
    pub(crate) async fn has_one_of(&self, process: u32) -> bool {
        let of = is_of_process(process);
        self.containers().await.iter().any(|container| of(&labels(container)))
    }

    async fn containers(&self) -> Vec<ContainerSummary> {
        let options = ListContainersOptionsBuilder::new().all(true).build();
        self.docker.list_containers(Some(options)).await.expect("the containers")
    }

    async fn left_where(&self, its: impl Fn(&Labels) -> bool) -> Vec<String> {
        let containers = self.containers().await;
        let containers = containers.into_iter().filter(|container| its(&labels(container)));
        let options = ListVolumesOptionsBuilder::new().build();
        let volumes = self.docker.list_volumes(Some(options)).await.expect("the volumes").volumes;
        let volumes = volumes.unwrap_or_default().into_iter().filter(|volume| its(&volume.labels));
        let containers = containers.map(|container| format!("container {:?}", container.names));
        containers.chain(volumes.map(|volume| format!("volume {}", volume.name))).collect()
    }
}

/// The regular files in an archive.
fn regular_files(archive: impl Read) -> Vec<(PathBuf, u32)> {
    let mut archive = tar::Archive::new(archive);
    let mut found = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let entry = entry.expect("an entry");
        if entry.header().entry_type().is_file() {
            let path = entry.path().expect("a path").into_owned();
            found.push((path, entry.header().mode().expect("a mode")));
        }
    }
    // The end of the archive has some zeros more.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).expect("the end");
    found
}

fn labels(container: &ContainerSummary) -> Labels {
    container.labels.clone().unwrap_or_default()
}

fn is_of_process(process: u32) -> impl Fn(&Labels) -> bool {
    move |labels| {
        let label = labels.get(PROCESS).map(String::as_str).unwrap_or_default();
        label.split('/').nth(1) == Some(&process.to_string())
    }
}

#[async_trait]
impl Engine for Bystander {
    fn kind(&self) -> Kind {
        Kind::Docker
    }

    async fn sandboxes(&self, instance: &str) -> Vec<Sandbox> {
        let filters = HashMap::from([("label", vec![format!("{LABEL}={instance}")])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let listed = self.docker.list_containers(Some(options)).await.expect("the containers");
        let sandbox = |container: ContainerSummary| Sandbox {
            id: container.id.expect("an identifier"),
            state: match container.state {
                Some(ContainerSummaryStateEnum::RUNNING) => State::Running,
                Some(ContainerSummaryStateEnum::PAUSED) => State::Paused,
                _ => State::Stopped,
            },
        };
        listed.into_iter().map(sandbox).collect()
    }

    async fn image_of(&self, sandbox: &str) -> String {
        self.inspect(sandbox).await.image.expect("an image")
    }

    async fn digest(&self, image: &str) -> String {
        self.image(image).await.id.expect("a digest")
    }

    async fn tag(&self, image: &str, name: &str) {
        let tag = TagImageOptionsBuilder::new().repo(name).tag("latest").build();
        self.docker.tag_image(image, Some(tag)).await.expect("a tag");
    }

    async fn untag(&self, name: &str) {
        let remove = RemoveImageOptionsBuilder::new().build();
        self.docker.remove_image(name, Some(remove), None).await.expect("a tag less");
    }

    async fn files(&self, image: &str) -> Vec<(PathBuf, u32)> {
        let (image, cmd) = (Some(image.to_owned()), Some(vec!["nothing".to_owned()]));
        let body = ContainerCreateBody { image, cmd, ..Default::default() };
        let options = None::<CreateContainerOptions>;
        let made = self.docker.create_container(options, body).await.expect("a container");
        // Nothing of the image runs for that.
        let mut export = Command::new("docker");
        let mut export = export.args(["export", &made.id]).stdout(Stdio::piped()).spawn().unwrap();
        let files = regular_files(export.stdout.take().expect("it is piped"));
        assert!(export.wait().expect("it ends").success(), "it exports everything");
        self.remove(&made.id).await;
        files
    }

    async fn limits(&self, sandbox: &str) -> Limits {
        let host = self.inspect(sandbox).await.host_config.expect("what was asked for");
        let number = |limit: Option<i64>| limit.unwrap_or_default().try_into().expect("a limit");
        Limits { memory: number(host.memory), processes: number(host.pids_limit) }
    }

    async fn commands(&self, sandbox: &str) -> Vec<String> {
        // A container that has ended, or is just being removed, has none.
        let processes = self.docker.top_processes(sandbox, None).await.ok();
        let processes = processes.and_then(|found| found.processes).unwrap_or_default();
        processes.into_iter().filter_map(|mut columns| columns.pop()).collect()
    }

    async fn remove(&self, sandbox: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        match self.docker.remove_container(sandbox, Some(options)).await {
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
            // The server removes what it has served at this very moment.
            Err(Error::DockerResponseServerError { status_code: 409, .. }) => {}
            removed => removed.expect("it can be removed"),
        }
    }

    async fn pause(&self, sandbox: &str) -> bool {
        self.docker.pause_container(sandbox).await.is_ok()
    }

    async fn unpause(&self, sandbox: &str) {
        self.docker.unpause_container(sandbox).await.expect("it can be unpaused");
    }

    async fn left(&self, instance: &str) -> Vec<String> {
        let is_its = |labels: &Labels| labels.get(LABEL).is_some_and(|label| label == instance);
        self.left_where(is_its).await
    }

    async fn left_of_process(&self, process: u32) -> Vec<String> {
        self.left_where(is_of_process(process)).await
    }
}
