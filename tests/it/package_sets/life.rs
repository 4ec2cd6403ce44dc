//! The life of a set, and sets that are missing or in a wrong place.

use std::sync::Arc;

use isolator_pool::folders;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::run::RunError;

use super::World;
use crate::common::engine::Kind;
use crate::common::eventually;

#[tokio::test]
async fn a_set_is_held_until_its_sandbox_is_gone() {
    let world = World::python().await;
    let set = world.module("parcel", "");
    assert_eq!(world.run_code("import parcel; print(1)", Some(&set)).await, "1\n");
    eventually("an end of the sandbox", async || Arc::strong_count(&set) == 1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_withdrawn_set_can_be_added_again() {
    let world = World::python().await;
    let set = world.module("parcel", "weight = 3");
    let name = world.language.name.clone();
    for _ in 0..2 {
        world.pools.provide_packages(&name, &set).await.expect("room for it");
        let printed = world.run_code("import parcel; print(parcel.weight)", Some(&set)).await;
        assert_eq!(printed, "3\n");
        eventually("an end of the sandbox", async || Arc::strong_count(&set) == 1).await;
        world.pools.withdraw_packages(&set.hash).await.expect("it can be removed");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_missing_set_is_an_error_that_says_so() {
    let world = World::python().await;
    let set = world.module("parcel", "");
    folders::remove(&set.folder).expect("ours");
    let error = world.try_run(&[("main.py", "import parcel")], Some(&set)).await.err();
    let error = error.expect("there is no such set");
    assert!(
        matches!(&error, ExecuteError::Run(RunError::NotBound(_) | RunError::Packages(_))),
        "{error}"
    );
    // The next request is served as ever.
    assert_eq!(world.run_code("print(1)", None).await, "1\n");
    world.stop().await;
}

#[tokio::test]
async fn a_set_elsewhere_on_the_machine_is_refused() {
    let world = World::start(Kind::Embedded, "python").await;
    let set = world.module("parcel", "");
    let set = Arc::into_inner(set).expect("nobody else has it");
    let elsewhere = isolator_pool::packages::PackageSet { folder: "/etc".into(), ..set };
    let error = world.try_run(&[("main.py", "")], Some(&Arc::new(elsewhere))).await.err();
    let error = error.expect("it is refused").to_string();
    assert!(error.contains("/etc is not in"), "{error}");
    world.stop().await;
}

#[tokio::test]
async fn a_removed_volume_is_filled_again() {
    // A sandbox that waits has the volume, so the engine would not remove it.
    let world = World::with_pool(Kind::Docker, "python", 0).await;
    let set = world.module("parcel", "weight = 3");
    let code = "import parcel; print(parcel.weight)";
    assert_eq!(world.run_code(code, Some(&set)).await, "3\n");
    let volume = world.volume();
    eventually("an end of the volume", async || docker(&["volume", "rm", &volume])).await;
    assert_eq!(world.run_code(code, Some(&set)).await, "3\n");
    world.stop().await;
}

fn docker(arguments: &[&str]) -> bool {
    let ran = std::process::Command::new("docker").args(arguments).output().expect("docker");
    ran.status.success()
}

impl World {
    /// The volume with the packages.
    fn volume(&self) -> String {
        let format = "{{.Name}} {{.Label \"isolator.instance\"}}";
        let listed = std::process::Command::new("docker")
            .args(["volume", "ls", "--format", format])
            .output()
            .expect("docker");
        let listed = String::from_utf8(listed.stdout).expect("text");
        let mut volumes = listed.lines().filter_map(|line| line.split_once(' '));
        let of_world = |(name, instance): &(&str, &str)| {
            name.ends_with("-packages") && self.labels["isolator.instance"] == *instance
        };
        volumes.find(of_world).expect("there is one").0.to_owned()
    }
}
