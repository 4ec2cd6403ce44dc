//! The container engine as a bystander sees it.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
};

use super::eventually;

/// The label whose value is the instance.
const LABEL: &str = "isolator.instance";

/// A connection of the test's own.
pub(crate) async fn docker() -> Docker {
    let docker = Docker::connect_with_defaults().expect("a container engine");
    docker.negotiate_version().await.expect("a container engine that answers")
}

/// All containers of an instance.
pub(crate) async fn containers(docker: &Docker, instance: &str) -> Vec<ContainerSummary> {
    let filters = HashMap::from([("label", vec![format!("{LABEL}={instance}")])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    docker.list_containers(Some(options)).await.expect("the containers")
}

/// The identifiers of an instance's containers in a state, such as "paused".
pub(crate) async fn in_state(docker: &Docker, instance: &str, state: &str) -> Vec<String> {
    containers(docker, instance)
        .await
        .into_iter()
        .filter(|container| {
            container.state.as_ref().is_some_and(|found| found.to_string() == state)
        })
        .filter_map(|container| container.id)
        .collect()
}

/// The names of an instance's volumes.
pub(crate) async fn volumes(docker: &Docker, instance: &str) -> Vec<String> {
    let filters = HashMap::from([("label", vec![format!("{LABEL}={instance}")])]);
    let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
    let listed = docker.list_volumes(Some(options)).await.expect("the volumes");
    listed.volumes.unwrap_or_default().into_iter().map(|volume| volume.name).collect()
}

/// Asserts that an instance has nothing on the engine any more.
pub(crate) async fn assert_nothing_left(instance: &str) {
    let docker = docker().await;
    let containers = containers(&docker, instance).await;
    assert!(containers.is_empty(), "containers are left: {containers:?}");
    let volumes = volumes(&docker, instance).await;
    assert!(volumes.is_empty(), "volumes are left: {volumes:?}");
}

/// Asserts that a process that has ended has nothing on the engine any more.
pub(crate) async fn assert_nothing_left_of(process: u32) {
    let docker = docker().await;
    let is_its = |labels: &HashMap<String, String>| {
        let label = labels.get("isolator.process").map(String::as_str).unwrap_or_default();
        label.split('/').nth(1) == Some(&process.to_string())
    };
    let options = ListContainersOptionsBuilder::new().all(true).build();
    for container in docker.list_containers(Some(options)).await.expect("the containers") {
        assert!(!is_its(&container.labels.clone().unwrap_or_default()), "left: {container:?}");
    }
    let options = ListVolumesOptionsBuilder::new().build();
    let volumes = docker.list_volumes(Some(options)).await.expect("the volumes").volumes;
    for volume in volumes.unwrap_or_default() {
        assert!(!is_its(&volume.labels), "left: {volume:?}");
    }
}

/// Removes a container as `docker rm -f` does. One that has gone by itself is removed.
pub(crate) async fn remove(docker: &Docker, container: &str) {
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    match docker.remove_container(container, Some(options)).await {
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
        // The server removes what it has served at this very moment.
        Err(Error::DockerResponseServerError { status_code: 409, .. }) => {}
        removed => removed.expect("it can be removed"),
    }
}

/// Everything the engine knows of a container.
pub(crate) async fn inspect(docker: &Docker, container: &str) -> ContainerInspectResponse {
    docker.inspect_container(container, None).await.expect("the container")
}

/// Waits until exactly `count` containers of an instance exist and all are paused.
pub(crate) async fn until_paused(docker: &Docker, instance: &str, count: usize) -> Vec<String> {
    let mut paused = Vec::new();
    eventually(&format!("{count} paused sandboxes"), async || {
        paused = in_state(docker, instance, "paused").await;
        paused.len() == count && containers(docker, instance).await.len() == count
    })
    .await;
    paused
}
