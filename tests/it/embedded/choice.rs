//! When the embedded engine is used.

use serde_json::json;

use super::{look, on_embedded, start};
use crate::common::engine::Engine as _;
use crate::common::{
    Finished, config, isolator, run, run_command, run_on_changed_machine, write_config,
};

/// Runs the doctor where no Docker listens at any of the usual places.
fn doctor_without_docker(kind: &str) -> Finished {
    let home = tempfile::tempdir().expect("a directory");
    let mut settings = config(&["python"], json!({}));
    settings["engine"]["kind"] = json!(kind);
    write_config(home.path(), &settings);
    run_on_changed_machine(home.path(), "mount -t tmpfs none /run", &["doctor"])
}

#[test]
fn without_docker_the_embedded_engine_is_used_unless_docker_was_requested() {
    let doctor = doctor_without_docker("auto");
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    assert!(doctor.stdout.contains("embedded engine on Linux"), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("python: a sandbox works"), "{}", doctor.stdout);

    let doctor = doctor_without_docker("docker");
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("MISSING"), "{}", doctor.stdout);
}

#[test]
fn the_embedded_engine_ignores_the_address_of_docker() {
    let home = tempfile::tempdir().expect("a directory");
    write_config(home.path(), &on_embedded(json!({})));
    let mut command = isolator(home.path());
    command.env("DOCKER_HOST", "ssh://nowhere").args(["run", "--language", "python", "-"]);
    let ran = run_command(&mut command, "print(1)");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "1\n"), "{ran:?}");
}

#[tokio::test]
async fn leftovers_are_collected_even_if_docker_would_be_chosen_now() {
    let mut server = start(json!({ "pool": { "size": 2, "hot": 0 } })).await;
    server.wait_until_ready().await;
    let look = look(&server);
    server.kill().await;
    assert!(!look.left(&server.instance).await.is_empty());

    let mut settings = on_embedded(json!({}));
    settings["engine"]["kind"] = json!("auto");
    write_config(server.directory(), &settings);
    let gc = run(server.directory(), &["gc"], "");
    assert_eq!(gc.code, Some(0), "{gc:?}");
    assert_eq!(look.left(&server.instance).await, [""; 0], "{gc:?}");
}
